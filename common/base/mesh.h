// The mesh: how many ranks each axis has, as the command line writes it ("dp=2,tp=2"), and where a rank stands in it.
// Used by the server's and the CLI's options, by the server's protocol and by the worker. Pure.
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

// Returns how many ranks an axis has: 1 where the mesh does not say.
uint32_t DpSize(const v1::Mesh& mesh);
uint32_t PpSize(const v1::Mesh& mesh);
uint32_t CpSize(const v1::Mesh& mesh);
uint32_t TpSize(const v1::Mesh& mesh);
// Returns over how many sets of the tp ranks experts are divided.
uint32_t EpSize(const v1::Mesh& mesh);
// Returns how many ranks hold the same part of the model: they share its gradients and optimizer states.
uint32_t DataRanks(const v1::Mesh& mesh);
// Returns how many ranks compute the groups of one copy of the model together.
uint32_t RanksOfCopy(const v1::Mesh& mesh);

struct MeshSizes {
  uint32_t dp = 1, pp = 1, cp = 1, tp = 1, ep = 1;
};
v1::Mesh MakeMesh(const MeshSizes& sizes);
// Tells whether both have as many ranks on every axis, and divide experts alike.
bool SameMesh(const v1::Mesh& a, const v1::Mesh& b);

// Returns how many ranks the mesh has: the product of its axes but ep, whose ranks are those of tp.
uint32_t NumRanks(const v1::Mesh& mesh);

// A rank's coordinates. tp is the inner axis, cp the next, then pp: neighbours in them have neighbouring ranks, hence a
// host where they can.
struct MeshPlace {
  uint32_t dp_rank = 0, pp_rank = 0, cp_rank = 0, tp_rank = 0;
  bool operator==(const MeshPlace&) const = default;
};
// REQUIRES: rank < NumRanks(mesh).
MeshPlace PlaceOf(const v1::Mesh& mesh, uint32_t rank);

// Returns `dp=2,pp=2,cp=2,tp=4,ep=2`; axes of one rank are left out, and a mesh of one rank is `dp=1`.
std::string MeshText(const v1::Mesh& mesh);

}  // namespace stemma
