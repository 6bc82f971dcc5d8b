// The names of number types: a run's short ones (fp32, fp64, bf16) and those of files (float32, float64, bfloat16,
// float16). Either is taken wherever one is given; what is stored and shown is the one of the place.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace stemma {

// What a run computes in: its weights and activations. Gradients and optimizer states are fp64 in an fp64 run, else
// fp32.
enum class RunDtype { kFp32, kFp64, kBf16 };

// Takes either kind of name. Returns nullopt for what a run cannot compute in.
std::optional<RunDtype> FindRunDtype(std::string_view name);
// REQUIRES: a name that FindRunDtype knows, or "", which is fp32: the dtype of a run configuration that was checked.
RunDtype RunDtypeOf(std::string_view name);

// "bfloat16" -> "bf16"; what has no short name is returned as it is, for the caller to refuse with its list.
std::string ShortDtypeName(std::string_view name);

// "bf16" -> "bfloat16".
std::string LongDtypeName(std::string_view name);

}  // namespace stemma
