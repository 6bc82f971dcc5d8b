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
}

TEST(Mesh, RefusesWhatIsNoMesh) {
  for (const std::string text : {"", "2", "dp", "dp=", "dp=0", "dp=-1", "dp=4097", "dp=4294967298", "dp=2,dp=2",
                                 "dp=2,", "tp=2", "DP=2", "dp=2x"}) {
    const auto mesh = ParseMesh(text);
    EXPECT_FALSE(mesh.ok()) << text;
    EXPECT_EQ(mesh.status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

}  // namespace
}  // namespace stemma
