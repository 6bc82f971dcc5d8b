#include "server/coordinator/unfinished_files.h"

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace stemma::server {
namespace {

namespace fs = std::filesystem;

std::set<std::string> NamesIn(const std::string& folder) {
  std::set<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    names.insert(entry.path().filename().string());
  return names;
}

TEST(UnfinishedFilesTest, WhatHasAPlaceOfItsOwnStays) {
  const testing::TempFolder data;
  const fs::path exports = data / "exports";
  for (const char* path : {".tmp-w-a1B2c3", ".tmp-v-abcdef/optim", "w", "x.tmp-", ".hidden"}) {
    fs::create_directories(exports / path);
  }
  std::ofstream(exports / ".tmp-w-a1B2c3" / "model.safetensors") << "x";
  std::ofstream(data / ".calibration.json.a1B2c3") << "x";
  RemoveUnfinished(data.path());
  EXPECT_EQ(NamesIn(exports.string()), (std::set<std::string>{"w", "x.tmp-", ".hidden"}));
  EXPECT_EQ(NamesIn(data.path()), std::set<std::string>{"exports"});
}

// The directory may be one that a user has for other things as well.
TEST(UnfinishedFilesTest, OutsideOfExportsAUsersTemporariesStay) {
  const testing::TempFolder data;
  const std::set<std::string> theirs = {".tmp-thesis", ".calibration.json.mine", "calibration.json", "tmp"};
  for (const std::string& name : theirs) fs::create_directory(data / name);
  RemoveUnfinished(data.path());
  EXPECT_EQ(NamesIn(data.path()), theirs);
}

TEST(UnfinishedFilesTest, WhatIsTakenFromItsWritersHasAnotherName) {
  const testing::TempFolder data;
  ASSERT_THAT(MakeExportFolder(data.path(), ".tmp-export-3-1"), testing::IsOk()) << "the folder of exports is new";
  ASSERT_THAT(MakeExportFolder(data.path(), ".tmp-export-3-2"), testing::IsOk());
  ASSERT_THAT(MakeExportFolder(data.path(), ".tmp-export-3-3"), testing::IsOk());
  EXPECT_EQ(TakeFromItsWriters(data / "exports/.tmp-export-3-3"), "") << "it held nothing";
  std::ofstream(data / "exports/.tmp-export-3-1/model.safetensors") << "x";
  const std::string taken = TakeFromItsWriters(data / "exports/.tmp-export-3-1");
  EXPECT_EQ(taken, data / "exports/.tmp-export-3-1~");
  EXPECT_EQ(TakeFromItsWriters(taken), taken) << "once";
  EXPECT_EQ(NamesIn(data / "exports"), (std::set<std::string>{".tmp-export-3-1~", ".tmp-export-3-2"}));
  const std::string gone = data / "exports/.tmp-gone";
  EXPECT_EQ(TakeFromItsWriters(gone), gone);
  fs::create_directories(data / "large");
  fs::create_directories(data / "other");
  fs::create_directory_symlink(data / "large", data / "other/exports");
  ASSERT_THAT(MakeExportFolder(data / "other", ".tmp-export-3-1"), testing::IsOk());
  EXPECT_TRUE(fs::is_directory(data / "large/.tmp-export-3-1"));
  std::ofstream(data / "file") << "x";
  EXPECT_FALSE(MakeExportFolder(data / "file", ".tmp-export-3-1").ok());
}

TEST(UnfinishedFilesTest, AnExportsRemovalLeavesTheRest) {
  const testing::TempFolder data;
  EXPECT_TRUE(UnfinishedExports(data.path()).empty()) << "no export was ever written";
  fs::create_directories(data / "exports/.tmp-w-a1B2c3");
  fs::create_directories(data / "exports/w");
  std::ofstream(data / ".calibration.json.a1B2c3") << "x";
  const std::vector<std::string> found = UnfinishedExports(data.path());
  ASSERT_EQ(found, std::vector<std::string>{data / "exports/.tmp-w-a1B2c3"});
  RemoveUnfinishedPath(found[0]);
  EXPECT_EQ(NamesIn(data.path()), (std::set<std::string>{".calibration.json.a1B2c3", "exports"}));
  EXPECT_EQ(NamesIn(data / "exports"), std::set<std::string>{"w"});
}

}  // namespace
}  // namespace stemma::server
