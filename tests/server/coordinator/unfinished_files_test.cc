#include "server/coordinator/unfinished_files.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "gtest/gtest.h"

namespace stemma::server {
namespace {

namespace fs = std::filesystem;

TEST(UnfinishedFilesTest, WhatHasAPlaceOfItsOwnStays) {
  const fs::path folder = fs::path(::testing::TempDir()) / ("unfinished-" + std::to_string(getpid()));
  for (const char* path :
       {".tmp-w-a1B2c3", ".tmp-v-abcdef/optim", "w", "x.tmp-", ".hidden", ".calibration.json.mine"}) {
    fs::create_directories(folder / path);
  }
  std::ofstream(folder / ".tmp-w-a1B2c3" / "model.safetensors") << "x";
  std::ofstream(folder / ".calibration.json.a1B2c3") << "x";
  RemoveUnfinished(folder.string());
  std::set<std::string> left;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) left.insert(entry.path().filename().string());
  EXPECT_EQ(left, (std::set<std::string>{"w", "x.tmp-", ".hidden", ".calibration.json.mine"}));
  fs::remove_all(folder);
  RemoveUnfinished(folder.string());  // where no export was ever written
}

}  // namespace
}  // namespace stemma::server
