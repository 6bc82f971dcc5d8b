#include "common/base/mesh.h"

#include <gtest/gtest.h>

#include <string>

namespace stemma {
namespace {

TEST(Mesh, ReadsAxes) {
  EXPECT_EQ(ParseMesh("dp=2")->dp(), 2);
  EXPECT_EQ(ParseMesh(" dp=4096 ")->dp(), 4096);
  EXPECT_EQ(NumRanks(*ParseMesh("dp=3")), 3);
  EXPECT_EQ(NumRanks(v1::Mesh()), 1) << "a size of 0 is 1";
  EXPECT_TRUE(SameMesh(*ParseMesh("tp=4, dp=2"), MakeMesh({.dp = 2, .tp = 4})));
  EXPECT_TRUE(SameMesh(*ParseMesh("tp=4"), MakeMesh({.dp = 1, .tp = 4})));
  EXPECT_TRUE(SameMesh(*ParseMesh("cp=4,dp=2"), MakeMesh({.dp = 2, .cp = 4})));
  EXPECT_EQ(NumRanks(MakeMesh({.dp = 2, .tp = 4})), 8);
  EXPECT_EQ(NumRanks(MakeMesh({.dp = 2, .cp = 3, .tp = 4})), 24);
  EXPECT_EQ(NumRanks(MakeMesh({.dp = 2, .pp = 5, .cp = 3, .tp = 4})), 120);
  EXPECT_EQ(DataRanks(MakeMesh({.dp = 2, .cp = 3, .tp = 4})), 6) << "the ranks that hold the same part of the model";
  EXPECT_EQ(DataRanks(MakeMesh({.dp = 2, .pp = 5, .cp = 3, .tp = 4})), 6);
  EXPECT_EQ(RanksOfCopy(MakeMesh({.dp = 2, .pp = 5, .cp = 3, .tp = 4})), 60);
  EXPECT_EQ(NumRanks(MakeMesh({.dp = 2, .tp = 4, .ep = 4})), 8) << "experts are dealt to the ranks of tp";
}

// tp is the inner axis, cp the next, then pp; two meshes of as many ranks are two.
TEST(Mesh, SaysWhereARankStands) {
  const v1::Mesh mesh = MakeMesh({.dp = 2, .tp = 3});
  for (uint32_t rank = 0; rank < 6; ++rank) EXPECT_EQ(PlaceOf(mesh, rank), (MeshPlace{rank / 3, 0, 0, rank % 3}));
  const v1::Mesh all = MakeMesh({.dp = 2, .pp = 2, .cp = 2, .tp = 3});
  for (uint32_t rank = 0; rank < 24; ++rank) {
    EXPECT_EQ(PlaceOf(all, rank), (MeshPlace{rank / 12, rank / 6 % 2, rank / 3 % 2, rank % 3}));
  }
  EXPECT_DEATH(PlaceOf(mesh, 6), "");
  EXPECT_FALSE(SameMesh(mesh, MakeMesh({.dp = 3, .tp = 2})));
  EXPECT_FALSE(SameMesh(MakeMesh({.dp = 2}), MakeMesh({.cp = 2})));
  EXPECT_FALSE(SameMesh(MakeMesh({.pp = 2}), MakeMesh({.cp = 2})));
  EXPECT_FALSE(SameMesh(MakeMesh({.pp = 2}), MakeMesh({})));
  EXPECT_TRUE(SameMesh(v1::Mesh(), MakeMesh({})));
  EXPECT_FALSE(SameMesh(MakeMesh({.tp = 4}), MakeMesh({.tp = 4, .ep = 2})));
}

TEST(Mesh, IsReadAsItIsWritten) {
  for (const std::string text :
       {"dp=1", "dp=3", "tp=2", "cp=2", "dp=2,tp=4", "pp=2", "dp=2,pp=5,cp=3,tp=4", "tp=4,ep=2", "dp=2,tp=8,ep=8"})
    EXPECT_EQ(MeshText(*ParseMesh(text)), text);
  EXPECT_EQ(MeshText(*ParseMesh("dp=1,tp=2")), "tp=2");
}

TEST(Mesh, RefusesWhatIsNoMesh) {
  for (const std::string text :
       {"",          "2",         "dp",   "dp=",  "dp=0",    "dp=-1",     "dp=4097", "dp=4294967298",
        "dp=2,dp=2", "dp=2,",     "ep=0", "tp=0", "tp=4097", "tp=2,tp=2", "cp=0",    "cp=2,cp=2",
        "pp=0",      "pp=2,pp=2", "DP=2", "dp=2x"}) {
    const auto mesh = ParseMesh(text);
    EXPECT_FALSE(mesh.ok()) << text;
    EXPECT_EQ(mesh.status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

}  // namespace
}  // namespace stemma
