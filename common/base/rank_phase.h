// The phases of a rank before it has the model, as the server says them (RankInfo.phase in training.proto): what a rank
// says of itself counts from then on.
#pragma once

#include <string_view>

namespace stemma {

inline constexpr char kWaitingPhase[] = "waiting";  // for other ranks
inline constexpr char kLoadingPhase[] = "loading";

// Tells whether the server has taken the weights that a rank loaded: a rank that is refused for them never gets here.
constexpr bool HasModel(std::string_view phase) { return phase != kWaitingPhase && phase != kLoadingPhase; }

}  // namespace stemma
