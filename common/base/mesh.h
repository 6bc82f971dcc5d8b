// The mesh: how many ranks each axis has, as the command line writes it ("dp=2"). Used by the server's and the CLI's
// options. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "stemma/v1/run_config.pb.h"

namespace stemma {

inline constexpr uint32_t kRanksMax = 4096;  // of a mesh

// Reads `axis=size`, several separated by commas. Errors: InvalidArgument - an axis that is unknown or named twice, a
// size that is no number from 1 to kRanksMax.
absl::StatusOr<v1::Mesh> ParseMesh(std::string_view text);

// Returns how many ranks the mesh has: the product of its axes.
uint32_t NumRanks(const v1::Mesh& mesh);

}  // namespace stemma
