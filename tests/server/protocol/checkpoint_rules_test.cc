// With which of the checkpoints that lie there a new journal begins.
#include "server/protocol/checkpoint_rules.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace stemma::server {
namespace {

internal::v1::KnownCheckpoint Known(const std::string& name, const std::string& lineage, uint64_t step,
                                    double saved_s) {
  internal::v1::KnownCheckpoint known;
  known.set_name(name);
  known.set_lineage(lineage);
  known.set_step(step);
  known.set_saved_at_s(saved_s);
  return known;
}

TEST(FurthestOfNewestLineageTest, OfOneLineageStepsCountAndNotTheClock) {
  EXPECT_EQ(FurthestOfNewestLineage(std::vector{Known("a", "L", 6, 2000), Known("b", "L", 12, 1)}), "b");
}

TEST(FurthestOfNewestLineageTest, OfLineagesTheOneThatWasSavedLastCounts) {
  EXPECT_EQ(FurthestOfNewestLineage(std::vector{Known("far", "K", 90, 10), Known("near", "L", 6, 20)}), "near");
  EXPECT_EQ(FurthestOfNewestLineage({}), "");
}

}  // namespace
}  // namespace stemma::server
