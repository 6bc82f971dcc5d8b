// With which of the checkpoints that lie there a new journal begins, which of them is missed, and their names.
#include "server/protocol/checkpoint_rules.h"

#include <set>
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

// The clock was a year ahead while the lineage that was left saved.
TEST(FurthestOfNewestLineageTest, AClockThatWasPutBackMakesNoLineageOlder) {
  internal::v1::JournalState state;
  const absl::Time now = absl::FromUnixSeconds(1'800'000'000);
  EXPECT_EQ(SavedAtSeconds(state, now), 1.8e9);
  *state.add_checkpoints() = Known("before", "A", 2, 1.7e9);
  EXPECT_EQ(SavedAtSeconds(state, now), 1.8e9);
  *state.add_checkpoints() = Known("left", "Z", 90, 1.83e9);
  const double saved_s = SavedAtSeconds(state, now);
  EXPECT_GT(saved_s, 1.83e9);
  EXPECT_LT(saved_s, 1.83e9 + 1);
  EXPECT_EQ(FurthestOfNewestLineage(std::vector{Known("left", "Z", 90, 1.83e9), Known("new", "B", 1, saved_s)}), "new");
}

TEST(FurthestOfNewestLineageTest, OfOneStepTheLastThatWasFoundCounts) {
  EXPECT_EQ(FurthestOfNewestLineage(std::vector{Known("a", "L", 6, 2), Known("b", "L", 6, 1)}), "b");
}

TEST(MissedCheckpointTest, TheLastOneOfTheFurthestStepIsNamed) {
  internal::v1::JournalState state;
  state.set_lineage("L");
  state.set_step(6);
  for (const char* name : {"a", "b"}) {
    *state.add_checkpoints() = Known(name, "L", 6, 1);
    state.mutable_checkpoints()->rbegin()->set_damage("x");
  }
  *state.add_checkpoints() = Known("before", "L", 5, 1);
  *state.add_checkpoints() = Known("of another", "K", 7, 1);
  const internal::v1::KnownCheckpoint* missed = MissedCheckpoint(state, {}, /*replays=*/false);
  ASSERT_NE(missed, nullptr);
  EXPECT_EQ(missed->name(), "b");
}

TEST(AutomaticNameTest, TheSecondOfAStepHasTheNumberTwo) {
  std::set<std::string> names;
  const auto taken = [&](const std::string& name) { return names.contains(name); };
  for (const char* name : {"step-00000007", "step-00000007-2", "step-00000007-3"}) {
    EXPECT_EQ(AutomaticName(7, taken), name);
    names.insert(name);
  }
}

}  // namespace
}  // namespace stemma::server
