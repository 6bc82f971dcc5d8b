// Which ranks of a mesh are connected: of drawn meshes every rank's groups, against the ranks' places.
#include "worker/parallel/axis_groups.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <thread>
#include <vector>

#include "tests/testing/draw.h"
#include "tests/testing/namespaces.h"
#include "tests/testing/thread_communicator.h"

namespace stemma::testing {
namespace {

using worker::AxisGroup;
using worker::GroupsOf;

struct DrawnMesh {
  v1::Mesh mesh;
  uint32_t kv_replicas = 1;
};

DrawnMesh DrawMesh(uint64_t seed) {
  Draw draw(seed);
  const auto size = [&](int64_t most) { return static_cast<uint32_t>(draw.Between(1, most)); };
  DrawnMesh drawn;
  drawn.kv_replicas = size(2);
  drawn.mesh = MakeMesh({.dp = size(3), .pp = size(3), .cp = size(3), .tp = drawn.kv_replicas * size(2)});
  return drawn;
}

// Each group has one rank for each of its places, in ascending order, and they differ on the axes that it is of alone.
TEST(AxisGroupsTest, RanksOfAGroupDifferOnItsAxesAlone) {
  for (uint64_t seed = FirstSeed(); seed < FirstSeed() + 60; ++seed) {
    SCOPED_TRACE(seed);
    const DrawnMesh drawn = DrawMesh(seed);
    std::map<std::string, std::vector<MeshPlace>> groups;
    for (uint32_t rank = 0; rank < NumRanks(drawn.mesh); ++rank) {
      const MeshPlace place = PlaceOf(drawn.mesh, rank);
      for (const AxisGroup& group : GroupsOf(drawn.mesh, place, drawn.kv_replicas)) {
        EXPECT_EQ(group.rank, groups[group.name].size()) << group.name;
        groups[group.name].push_back(place);
        const MeshPlace& first = groups[group.name].front();
        const char axis = group.name[0];
        EXPECT_EQ(group.pairs_apart, axis == 'p') << group.name << ": stages alone send in both directions at once";
        EXPECT_TRUE(axis == 'd' || place.dp_rank == first.dp_rank) << group.name;
        EXPECT_TRUE(axis == 'p' || place.pp_rank == first.pp_rank) << group.name;
        EXPECT_TRUE(axis == 'd' || axis == 'c' || place.cp_rank == first.cp_rank) << group.name;
        EXPECT_TRUE(axis == 't' || axis == 'k' || place.tp_rank == first.tp_rank) << group.name;
        EXPECT_TRUE(axis != 'k' || place.tp_rank / drawn.kv_replicas == first.tp_rank / drawn.kv_replicas);
      }
    }
    for (uint32_t rank = 0; rank < NumRanks(drawn.mesh); ++rank) {
      for (const AxisGroup& group : GroupsOf(drawn.mesh, PlaceOf(drawn.mesh, rank), drawn.kv_replicas)) {
        EXPECT_EQ(group.size, groups[group.name].size()) << group.name;
      }
    }
  }
}

TEST(AxisGroupsTest, ARankKnowsTheNumbersOfTheOthers) {
  for (uint64_t seed = FirstSeed(); seed < FirstSeed() + 60; ++seed) {
    SCOPED_TRACE(seed);
    const DrawnMesh drawn = DrawMesh(seed);
    const std::vector<MeshRanks> ranks = MakeThreadMesh(drawn.mesh, drawn.kv_replicas, absl::Minutes(1));
    for (uint32_t rank = 0; rank < ranks.size(); ++rank) {
      const MeshRanks& own = ranks[rank];
      const MeshPlace place = PlaceOf(drawn.mesh, rank);
      EXPECT_EQ(own.mesh_rank(), static_cast<int>(rank));
      EXPECT_EQ(own.size(), static_cast<int>(ranks.size()));
      for (int stage = 0; stage < own.pp->size(); ++stage) {
        MeshPlace there = place;
        there.pp_rank = static_cast<uint32_t>(stage);
        EXPECT_EQ(PlaceOf(drawn.mesh, static_cast<uint32_t>(own.MeshRankOfStage(stage))), there);
      }
      for (int data = 0; data < own.data->size(); ++data) {
        MeshPlace there = place;
        there.dp_rank = static_cast<uint32_t>(data) / CpSize(drawn.mesh);
        there.cp_rank = static_cast<uint32_t>(data) % CpSize(drawn.mesh);
        EXPECT_EQ(PlaceOf(drawn.mesh, static_cast<uint32_t>(own.MeshRankOfData(data))), there);
      }
      for (uint32_t copy = 0; copy < DpSize(drawn.mesh); ++copy) {
        MeshPlace there = place;
        there.dp_rank = copy;
        EXPECT_EQ(PlaceOf(drawn.mesh, static_cast<uint32_t>(own.copy().MeshRankInCopy(static_cast<int>(copy)))), there);
      }
    }
  }
}

// Whichever rank says it, all of the mesh hear it, or of its copy where these agree among themselves.
TEST(MeshRanksTest, AWordOfAnyRankReachesAll) {
  const std::vector<MeshRanks> ranks =
      MakeThreadMesh(MakeMesh({.dp = 2, .pp = 2, .cp = 2, .tp = 2}), /*kv_replicas=*/1, absl::Minutes(1));
  const size_t of_copy = ranks.size() / 2;
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    threads.emplace_back([&, rank] {
      for (size_t speaker = 0; speaker < ranks.size(); ++speaker) {
        int64_t of_mesh = rank == speaker ? 7 : 0, own = of_mesh;
        EXPECT_EQ(ranks[rank].Agree("step", {&of_mesh, 1}), absl::OkStatus());
        EXPECT_EQ(of_mesh, 7) << "rank " << rank << " of " << speaker;
        EXPECT_EQ(ranks[rank].copy().Agree("cluster", {&own, 1}), absl::OkStatus());
        EXPECT_EQ(own, rank / of_copy == speaker / of_copy ? 7 : 0) << "rank " << rank << " of " << speaker;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace stemma::testing
