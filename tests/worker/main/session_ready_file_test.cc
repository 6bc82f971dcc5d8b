#include "worker/main/session_ready_file.h"

#include <filesystem>
#include <string>
#include <thread>

#include "common/base/file.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace stemma::worker {
namespace {

namespace fs = std::filesystem;
using stemma::testing::Invalid;
using stemma::testing::IsOk;

class SessionReadyFileTest : public ::testing::Test {
 protected:
  const stemma::testing::TempFolder folder_;
  const std::string path_ = folder_ / "ready";
};

TEST_F(SessionReadyFileTest, IsThereFromReadyToTheEnd) {
  SessionReadyFile file(path_, "127.0.0.1:1\n");
  EXPECT_FALSE(fs::exists(path_));
  EXPECT_THAT(file.Write(), IsOk());
  EXPECT_EQ(ReadFile(path_, 100).value_or(""), "127.0.0.1:1\n");
  file.End();
  EXPECT_FALSE(fs::exists(path_));
  file.End();
}

TEST_F(SessionReadyFileTest, AnEngineThatIsReadyTooLateWritesNone) {
  SessionReadyFile file(path_, "127.0.0.1:1\n");
  file.End();
  EXPECT_THAT(file.Write(), IsOk());
  EXPECT_FALSE(fs::exists(path_));
}

TEST_F(SessionReadyFileTest, AnEngineThatIsReadyJustThenLeavesNone) {
  for (int round = 0; round < 200; ++round) {
    SessionReadyFile file(path_, "127.0.0.1:1\n");
    std::thread engine([&] { EXPECT_THAT(file.Write(), IsOk()); });
    file.End();
    engine.join();
    ASSERT_FALSE(fs::exists(path_)) << "round " << round;
  }
}

TEST_F(SessionReadyFileTest, WithoutAPathNoneIsWanted) {
  SessionReadyFile file("", "127.0.0.1:1\n");
  EXPECT_THAT(file.Write(), IsOk());
  file.End();
}

TEST_F(SessionReadyFileTest, APathThatSomebodyElseHasIsTheSessionsError) {
  fs::create_directory(path_);
  EXPECT_THAT(SessionReadyFile(path_, "127.0.0.1:1\n").Write(), Invalid("is there already and is no file"));
}

}  // namespace
}  // namespace stemma::worker
