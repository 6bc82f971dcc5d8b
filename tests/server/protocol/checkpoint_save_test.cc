// How long a save waits for the disk that commits it.
#include "server/protocol/checkpoint_save.h"

#include <string>
#include <utility>

#include "gtest/gtest.h"

namespace stemma::server {
namespace {

constexpr int kFloorS = 300;
constexpr double kPredictedS = 3360;  // of a model of some billion parameters

class CheckpointSaveTest : public ::testing::Test {
 protected:
  // Lets a save begin, whose commit reads a large checkpoint back.
  CheckpointSaveTest() {
    CheckpointSave::Order order;
    order.job = "~save/1";
    order.manifest.set_name("one");
    save_.Begin(std::move(order), /*num_ranks=*/1, {.longest = kPredictedS, .total = kPredictedS},
                absl::Seconds(kFloorS));
    save_.FolderMade();
    save_.AddStaged(0, absl::OkStatus());
    save_.AddDone(0, internal::v1::SaveDone(), absl::OkStatus());
    save_.Commit();
    save_.Pass(now_);
  }

  void Pass(int seconds) {
    for (int second = 0; second < seconds; ++second) save_.Pass(now_ += absl::Seconds(1));
  }

  CheckpointSave save_;
  absl::Time now_ = absl::UnixEpoch();
};

TEST_F(CheckpointSaveTest, ACommitThatReadsNothingIsGivenUpAfterTheFloorHoweverMuchItReads) {
  Pass(kFloorS - 3);  // the first look counts as two seconds
  EXPECT_EQ(save_.Problem(), "");
  Pass(3);
  EXPECT_NE(save_.Problem().find("reading checkpoint one back stands still"), std::string::npos) << save_.Problem();
}

TEST_F(CheckpointSaveTest, ACommitThatReadsOnIsWaitedForAsLongAsItsBytesAsk) {
  // It reads what was written, after a reading that goes on: both take as long as the writing.
  for (double passed_s = kFloorS; passed_s < kWatchMultiple * 2 * kPredictedS; passed_s += kFloorS - 3) {
    Pass(kFloorS - 3);
    EXPECT_EQ(save_.Problem(), "");
    save_.DiskMoved();
  }
  Pass(kFloorS);
  EXPECT_NE(save_.Problem(), "") << "what reads no further hangs";
}

TEST_F(CheckpointSaveTest, NothingIsLookedAtOnceItHasEnded) {
  save_.Look(now_);
  EXPECT_EQ(save_.NextLook(), now_ + kLookEvery);
  save_.End();
  EXPECT_EQ(save_.NextLook(), absl::InfiniteFuture());
  Pass(1);
  EXPECT_EQ(save_.NextLook(), absl::InfiniteFuture()) << "time that passes later begins no look";
}

}  // namespace
}  // namespace stemma::server
