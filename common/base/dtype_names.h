// The names of number types: a run's short ones (fp32, fp64, bf16) and those of files (float32, float64, bfloat16,
// float16). Either is taken wherever one is given; what is stored and shown is the one of the place.
#pragma once

#include <string>
#include <string_view>

namespace stemma {

// "bfloat16" -> "bf16"; what has no short name is returned as it is, for the caller to refuse with its list.
std::string ShortDtypeName(std::string_view name);

// "bf16" -> "bfloat16".
std::string LongDtypeName(std::string_view name);

}  // namespace stemma
