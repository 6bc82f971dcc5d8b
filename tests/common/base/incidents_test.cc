#include "common/base/incidents.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "common/base/temporary_folder.h"
#include "gtest/gtest.h"

namespace stemma {
namespace {

namespace fs = std::filesystem;

class IncidentsTest : public ::testing::Test {
 protected:
  IncidentsTest() : folder_(TemporaryFolder::Create(::testing::TempDir() + "/incidents").value()) {}
  std::string Data() const { return folder_.path(); }
  std::string Text(const std::string& file) const {
    std::ostringstream text;
    text << std::ifstream(Data() + "/incidents/" + file).rdbuf();
    return text.str();
  }
  std::set<std::string> Names() const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(Data() + "/incidents")) names.insert(entry.path().filename());
    return names;
  }

 private:
  TemporaryFolder folder_;
};

TEST_F(IncidentsTest, EachProcessAddsItsFile) {
  ASSERT_TRUE(WriteIncidentFile(Data(), IncidentName(12, 3), "rank-1.txt", "one").ok());
  ASSERT_TRUE(WriteIncidentFile(Data(), IncidentName(12, 3), "server.json", "longer").ok());
  ASSERT_TRUE(WriteIncidentFile(Data(), IncidentName(12, 3), "server.json", "two").ok());
  EXPECT_EQ(Text("000012-0003/rank-1.txt"), "one");
  EXPECT_EQ(Text("000012-0003/server.json"), "two");
}

TEST_F(IncidentsTest, NobodyElseReadsThem) {
  ASSERT_TRUE(WriteIncidentFile(Data(), IncidentName(1, 1), "rank-1.txt", "one").ok());
  for (const char* path : {"/incidents", "/incidents/000001-0001", "/incidents/000001-0001/rank-1.txt"}) {
    const fs::perms others = fs::status(Data() + path).permissions() & (fs::perms::group_all | fs::perms::others_all);
    EXPECT_EQ(others, fs::perms::none) << path;
  }
}

TEST_F(IncidentsTest, AHostWithoutTheDataDirectoryGetsNone) {
  const std::string elsewhere = Data() + "/elsewhere";
  EXPECT_FALSE(WriteIncidentFile(elsewhere, IncidentName(1, 1), "rank-1.txt", "one").ok());
  EXPECT_FALSE(fs::exists(elsewhere));
}

TEST_F(IncidentsTest, ALinkIsNotFollowed) {
  const std::string other = Data() + "/other";
  std::ofstream(other) << "kept";
  ASSERT_TRUE(WriteIncidentFile(Data(), IncidentName(1, 1), "a", "").ok());
  fs::create_symlink(other, Data() + "/incidents/000001-0001/b");
  EXPECT_FALSE(WriteIncidentFile(Data(), IncidentName(1, 1), "b", "x").ok());
  EXPECT_EQ(Text("../other"), "kept");
}

TEST_F(IncidentsTest, TheNewestStayByEpochAndGeneration) {
  for (uint64_t i = 0; i < kIncidentsMax; ++i) {
    ASSERT_TRUE(WriteIncidentFile(Data(), IncidentName(9 + i % 2, 1 + i), "a", "").ok());
  }
  RemoveOldIncidents(Data());
  EXPECT_EQ(Names().size(), kIncidentsMax);
  fs::create_directory(Data() + "/incidents/000000-notes");
  for (uint64_t i = 0; i < 2; ++i) ASSERT_TRUE(WriteIncidentFile(Data(), IncidentName(1'000'000, i), "a", "").ok());
  RemoveOldIncidents(Data());
  EXPECT_TRUE(Names().contains("1000000-0001"));
  EXPECT_TRUE(Names().contains("000000-notes"));
  EXPECT_FALSE(Names().contains("000009-0001"));
  EXPECT_EQ(Names().size(), kIncidentsMax + 1);
}

// A run without end: epoch 9 has more generations than the name was made for, and so has the server begun more often.
TEST_F(IncidentsTest, ALongerNumberIsNewerThanAShorterOne) {
  for (uint64_t i = 1; i < kIncidentsMax; ++i) {
    ASSERT_TRUE(WriteIncidentFile(Data(), IncidentName(9, 9999 - i), "a", "").ok());
  }
  for (const char* name : {"000009-10000", "1000000-0001"}) {
    ASSERT_TRUE(WriteIncidentFile(Data(), name, "a", "").ok());
  }
  for (const char* name : {"000009-0001-2", "9-20000", "000009-+9999", "000009-09999"}) {
    fs::create_directory(Data() + "/incidents/" + name);
  }
  RemoveOldIncidents(Data());
  EXPECT_TRUE(Names().contains("000009-10000"));
  EXPECT_TRUE(Names().contains("1000000-0001"));
  EXPECT_FALSE(Names().contains(IncidentName(9, 9999 - (kIncidentsMax - 1))));
  EXPECT_TRUE(Names().contains(IncidentName(9, 9999 - (kIncidentsMax - 2))));
  EXPECT_EQ(Names().size(), kIncidentsMax + 4) << "what no server wrote stays";
}

TEST_F(IncidentsTest, WithoutAnyNothingIsRemoved) {
  RemoveOldIncidents(Data());
  EXPECT_TRUE(fs::is_empty(Data()));
}

}  // namespace
}  // namespace stemma
