// How digests of a model's weights are written, so that one that was made in another way is not taken for one of other
// weights: journals and checkpoints keep them, and outlive the version that wrote them.
#pragma once

#include <string>
#include <string_view>

namespace stemma {

// Returns the text, 64 characters, of 64 hex digits that were made as worker/model/weights_digest.h does now. The last
// ones give way to a mark.
std::string WeightsDigestText(std::string_view hex);

// Tells whether two digests are of different weights. Of digests that were made in different ways, or are empty, that
// is not known: they do not differ.
bool WeightsDiffer(std::string_view digest, std::string_view other);

}  // namespace stemma
