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

// A lineage that began with a checkpoint of step 0, in a data directory whose --model may be any other.
class BeginsWithCheckpointTest : public ::testing::Test {
 protected:
  BeginsWithCheckpointTest() {
    state_.set_lineage("L");
    state_.set_begins_with_checkpoint(true);
    *state_.add_checkpoints() = Known("start", "L", 0, 1);
  }
  void Keep(uint64_t steps) {
    state_.set_step(steps);
    for (uint64_t step = 1; step <= steps; ++step) {
      internal::v1::KeptStep& kept = *state_.add_kept()->add_steps();
      kept.mutable_decision()->set_step(step);
      kept.mutable_decision()->set_outcome(v1::StepResult::APPLIED);
    }
  }
  void Damage(int checkpoint) { state_.mutable_checkpoints(checkpoint)->set_damage("x"); }
  std::string Base(bool replays) const { return ChooseBase(state_, replays).checkpoint; }
  std::string Missed(bool replays) const {
    const internal::v1::KnownCheckpoint* missed = MissedCheckpoint(state_, ChooseBase(state_, replays), replays);
    return missed == nullptr ? "" : missed->name();
  }

  internal::v1::JournalState state_;
};

TEST_F(BeginsWithCheckpointTest, GoesBackToIt) {
  for (const uint64_t steps : {0, 3}) {
    state_.clear_kept();
    Keep(steps);
    EXPECT_EQ(Base(/*replays=*/true), "start");
    EXPECT_EQ(Missed(/*replays=*/true), "");
  }
}

TEST_F(BeginsWithCheckpointTest, MissesItWhereItIsDamagedAndNeverBeginsWithTheDirectory) {
  Damage(0);
  for (const uint64_t steps : {0, 3}) {
    state_.clear_kept();
    Keep(steps);
    for (const bool replays : {true, false}) {
      EXPECT_EQ(Missed(replays), "start") << steps << " steps, all of them kept";
    }
  }
  state_.set_begins_with_checkpoint(false);
  EXPECT_EQ(Missed(/*replays=*/true), "") << "control: the directory has the weights of step 0";
}

TEST_F(BeginsWithCheckpointTest, MissesALaterOneWhereTheFirstIsGone) {
  *state_.mutable_checkpoints(0) = Known("later", "L", 3, 1);
  Keep(4);
  Damage(0);
  EXPECT_EQ(Missed(/*replays=*/true), "later");
}

// It gives steps up, for it lies inside of a request; from the first one all could be computed again, but that is gone.
TEST_F(BeginsWithCheckpointTest, GoesBackToALaterOneThatGivesStepsUpAndNotToTheDirectory) {
  *state_.mutable_checkpoints(0) = Known("later", "L", 3, 1);
  Keep(4);
  for (int i = 1; i < 4; ++i) *state_.mutable_kept(0)->add_steps() = state_.kept(i).steps(0);
  state_.mutable_kept()->DeleteSubrange(1, 3);
  EXPECT_EQ(Base(/*replays=*/true), "later");
  state_.set_begins_with_checkpoint(false);
  EXPECT_EQ(Base(/*replays=*/true), "") << "control: the directory has the weights of step 0";
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
