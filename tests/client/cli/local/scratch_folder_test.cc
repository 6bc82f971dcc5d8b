// What killed runs of `stemma local` left in the folder for temporary files goes, and nothing else.
#include "client/cli/local/scratch_folder.h"

#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace stemma::cli {
namespace {

namespace fs = std::filesystem;

void MakeOld(const std::string& path) {
  fs::last_write_time(path, fs::last_write_time(path) - std::chrono::minutes(2));
}

void MakeScratch(const std::string& path, mode_t mode) {
  fs::create_directory(path);
  std::ofstream(path + "/worker-secret") << "x";
  ASSERT_EQ(chmod(path.c_str(), mode), 0);
}

TEST(ScratchFolderTest, WhatAKilledRunLeftGoesAndNothingElse) {
  const testing::TempFolder root;
  for (const char* name : {"stemma-local-left", "stemma-local-runs", "stemma-local-new", "other"}) {
    MakeScratch(root / name, 0700);
  }
  MakeScratch(root / "stemma-local-others", 0755);
  fs::create_directory_symlink(root / "other", root / "stemma-local-link");
  UniqueFd lock = LockScratchFolder(root / "stemma-local-runs");
  ASSERT_TRUE(lock.valid());
  for (const char* name : {"stemma-local-left", "stemma-local-runs", "stemma-local-others", "other"}) {
    MakeOld(root / name);
  }
  SweepScratchFolders(root.path());
  std::set<std::string> stay;
  for (const fs::directory_entry& entry : fs::directory_iterator(root.path())) {
    stay.insert(entry.path().filename().string());
  }
  EXPECT_EQ(stay, (std::set<std::string>{"stemma-local-runs", "stemma-local-new", "stemma-local-others", "other",
                                         "stemma-local-link"}));
  lock.Reset();
  SweepScratchFolders(root.path());
  EXPECT_FALSE(fs::exists(root / "stemma-local-runs")) << "control: its run has ended";
  SweepScratchFolders(root / "none");
}

}  // namespace
}  // namespace stemma::cli
