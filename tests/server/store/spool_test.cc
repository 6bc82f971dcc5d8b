// A spooled request comes back as it was, or leaves nothing when it cannot be written.
#include "server/store/spool.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <vector>

#include "common/base/error.h"
#include "common/base/mesh.h"
#include "tests/server/store/drawn_requests.h"
#include "tests/server/store/store_files.h"
#include "tests/testing/file_size_limit.h"
#include "tests/testing/status_matchers.h"

namespace stemma::server {
namespace {

using ::testing::ElementsAre;
using testing::FileSizeLimit;
using ::testing::HasSubstr;
using testing::Invalid;
using testing::IsOk;
using testing::StatusIs;
using testing::TempFolder;

Spool Opened(const std::string& directory) {
  absl::StatusOr<Spool> spool = Spool::Open(directory);
  EXPECT_THAT(spool, IsOk());
  return *std::move(spool);
}

TEST(SpoolTest, ARequestComesBackAsItWas) {
  const TempFolder folder;
  const Spool spool = Opened(folder.path());
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const int num_groups = static_cast<int>(seed == 1 ? 0 : SplitMix64(seed).Next() % 40);
    const TrainingRequest request = DrawnRequest(seed, num_groups, seed % 2 == 0 ? 50 : 20000);
    const RequestPlan plan = DrawnPlan(seed, num_groups);
    const absl::StatusOr<internal::v1::SpoolFile> file = spool.Write("a.req", request, plan, MakeMesh({.dp = 3}));
    ASSERT_THAT(file, IsOk());
    EXPECT_EQ(file->name(), "a.req");
    EXPECT_EQ(file->bytes(), std::filesystem::file_size(folder / "spool/a.req"));
    EXPECT_EQ(file->sha256().size(), 64u);
    const absl::StatusOr<SpooledRequest> spooled = Opened(folder.path()).Read(*file);
    ASSERT_THAT(spooled, IsOk());
    ExpectSpooled(*spooled, request, plan, MakeMesh({.dp = 3}));
  }
}

// Files of versions before prefix_rollouts: workers refuse a plan of a model with experts that does not say them.
TEST(SpoolTest, AnOlderFilesPlanSaysHowManyRolloutsAPrefixHas) {
  const TempFolder folder;
  const Spool spool = Opened(folder.path());
  RequestPlan plan = DrawnPlan(1, 2);
  v1::Cluster& cluster = *plan.plan.mutable_steps(1)->mutable_clusters(0);
  cluster.add_prefix_groups(7);
  v1::Wave& wave = *cluster.add_waves();
  for (const uint32_t rollout : {0, 2, 3}) {
    wave.add_members()->set_group(7);
    wave.mutable_members(wave.members_size() - 1)->set_rollout(rollout);
  }
  const auto file = spool.Write("a.req", DrawnRequest(1, 2, 50), plan, MakeMesh({.dp = 1}));
  ASSERT_THAT(file, IsOk());
  const absl::StatusOr<SpooledRequest> spooled = spool.Read(*file);
  ASSERT_THAT(spooled, IsOk());
  EXPECT_THAT(spooled->plan.steps(1).clusters(0).prefix_rollouts(), ElementsAre(3));
}

// Chunks end inside groups, and a rollout alone is larger than a chunk.
TEST(SpoolTest, GroupsThatDoNotFitAChunkAreJoinedAgain) {
  const TempFolder folder;
  const Spool spool = Opened(folder.path());
  TrainingRequest request = DrawnRequest(3, 4, 100);
  SplitMix64 random(3);
  for (int i = 0; i < 12; ++i) *request.groups[1].add_rollouts() = DrawnRollout(random, 2 << 20, i);
  request.groups[2].add_rollouts()->set_response_tokens(DrawnBytes(random, 5 << 20));
  request.groups[2].add_rollouts()->set_response_tokens("end");
  const absl::StatusOr<internal::v1::SpoolFile> file = spool.Write("a", request, DrawnPlan(3, 4), MakeMesh({.dp = 1}));
  ASSERT_THAT(file, IsOk());
  EXPECT_GT(file->bytes(), 10u << 20);
  const absl::StatusOr<SpooledRequest> spooled = spool.Read(*file);
  ASSERT_THAT(spooled, IsOk());
  ExpectSpooled(*spooled, request, DrawnPlan(3, 4), MakeMesh({.dp = 1}));
}

uint64_t ResidentBytes() {
  uint64_t all_pages = 0, resident_pages = 0;
  std::ifstream("/proc/self/statm") >> all_pages >> resident_pages;
  return resident_pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

// In rollouts that are too small for mappings of their own, below something that stays.
TEST(SpoolTest, MemoryOfALargeRequestThatWasReadGoesBackToTheSystem) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's allocator keeps what is freed";
#endif
  const TempFolder folder;
  const Spool spool = Opened(folder.path());
  internal::v1::SpoolFile file;
  {
    TrainingRequest request;
    v1::PromptGroup& group = request.groups.emplace_back();
    group.set_uid("g");
    for (int i = 0; i < (64 << 10); ++i) group.add_rollouts()->set_response_tokens(std::string(1000, 'x'));
    request.bytes = group.ByteSizeLong();
    const auto written = spool.Write("a", request, RequestPlan(), MakeMesh({.dp = 1}));
    ASSERT_THAT(written, IsOk());
    file = *written;
  }
  absl::StatusOr<SpooledRequest> spooled = spool.Read(file);
  ASSERT_THAT(spooled, IsOk());
  const std::vector<std::string> above(2000, std::string(1000, 'x'));
  const uint64_t before = ResidentBytes();
  spooled->request = nullptr;
  EXPECT_LT(ResidentBytes(), before - (48u << 20));
}

TEST(SpoolTest, FolderAndFilesAreTheUsersAlone) {
  const TempFolder folder;
  const Spool spool = Opened(folder.path());
  ASSERT_THAT(spool.Write("a", DrawnRequest(1, 1, 10), DrawnPlan(1, 1), MakeMesh({.dp = 1})), IsOk());
  struct stat info;
  ASSERT_EQ(stat((folder / "spool").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  ASSERT_EQ(stat((folder / "spool/a").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST(SpoolTest, ANameIsNeverAPath) {
  const TempFolder folder;
  const Spool spool = Opened(folder.path());
  internal::v1::SpoolFile file;
  for (const std::string& name :
       {std::string(), std::string("."), std::string(".."), std::string("../a"), std::string("a/b"), std::string("-a"),
        std::string(".a"), std::string("a\0b", 3), std::string("a b"), std::string("/a"), std::string("a..b"),
        std::string(129, 'a'), std::string("\xc3\xa4")}) {
    EXPECT_THAT(spool.Write(name, DrawnRequest(1, 1, 10), DrawnPlan(1, 1), MakeMesh({.dp = 1})),
                Invalid("is not a valid name"))
        << name;
    EXPECT_THAT(spool.Remove(name), Invalid("is not a valid name")) << name;
    file.set_name(name);
    EXPECT_THAT(spool.Read(file), Invalid("is not a valid name")) << name;
  }
  EXPECT_TRUE(FilesOf(folder / "spool").empty());
  for (const std::string& name : {std::string("a"), std::string("0a.b_c-D.req"), std::string(128, 'a')}) {
    EXPECT_THAT(spool.Write(name, DrawnRequest(1, 1, 10), DrawnPlan(1, 1), MakeMesh({.dp = 1})), IsOk()) << name;
  }
}

TEST(SpoolTest, AFullDiskLeavesNothing) {
  const TempFolder folder;
  const Spool spool = Opened(folder.path());
  const TrainingRequest request = DrawnRequest(2, 200, 100000);
  const RequestPlan plan = DrawnPlan(2, 200);
  const absl::StatusOr<internal::v1::SpoolFile> whole = spool.Write("whole", request, plan, MakeMesh({.dp = 1}));
  ASSERT_THAT(whole, IsOk());
  ASSERT_GT(whole->bytes(), 8u << 20);
  for (const uint64_t left : {uint64_t{0}, uint64_t{10}, uint64_t{3} << 20, whole->bytes() - 40, whole->bytes() - 33,
                              whole->bytes() - 32, whole->bytes() - 1}) {
    absl::Status status;
    {
      const FileSizeLimit limit(left);
      status = spool.Write("a", request, plan, MakeMesh({.dp = 1})).status();
    }
    EXPECT_EQ(ErrorReason(status), "FILE_TOO_LARGE") << left << ": " << status;
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(status.message()), HasSubstr("spool/a"));
    EXPECT_EQ(FilesOf(folder / "spool").size(), 1u) << left;
  }
  const FileSizeLimit limit(whole->bytes());
  EXPECT_THAT(spool.Write("a", request, plan, MakeMesh({.dp = 1})), IsOk()) << "control: it fits exactly";
}

TEST(SpoolTest, AMessageAboveTheLimitIsAnErrorAndLeavesNothing) {
  const TempFolder folder;
  const absl::StatusOr<Spool> small = Spool::Open(folder.path(), 2000);
  ASSERT_THAT(small, IsOk());
  const absl::Status plan = small->Write("a", DrawnRequest(1, 1, 10), DrawnPlan(1, 1000), MakeMesh({.dp = 1})).status();
  EXPECT_EQ(ErrorReason(plan), "LIMIT_EXCEEDED") << plan;
  EXPECT_THAT(std::string(plan.message()), HasSubstr("the limit is 2000"));
  TrainingRequest request = DrawnRequest(1, 1, 10);
  request.groups[0].add_rollouts()->set_response_tokens(std::string(3000, 'x'));
  EXPECT_EQ(ErrorReason(small->Write("a", request, DrawnPlan(1, 1), MakeMesh({.dp = 1})).status()), "LIMIT_EXCEEDED");
  EXPECT_TRUE(FilesOf(folder / "spool").empty());
  EXPECT_THAT(Opened(folder.path()).Write("a", request, DrawnPlan(1, 1000), MakeMesh({.dp = 1})), IsOk()) << "control";
}

TEST(SpoolTest, WhatAKilledWriterLeftIsRemovedAtTheNextStart) {
  const TempFolder folder;
  const Spool spool = Opened(folder.path());
  ASSERT_THAT(spool.Write("a", DrawnRequest(1, 1, 10), DrawnPlan(1, 1), MakeMesh({.dp = 1})), IsOk());
  SetBytes(folder / "spool/.b.req.Xy12Za", "half");
  SetBytes(folder / "spool/.hidden", "someone's");
  SetBytes(folder / "spool/..Xy12Za", "someone's");
  SetBytes(folder / "spool/notes", "someone's");
  Opened(folder.path());
  const Files files = FilesOf(folder / "spool");
  EXPECT_EQ(files.size(), 4u);
  EXPECT_FALSE(files.contains(".b.req.Xy12Za"));
}

// The folder of another run is there: neither gets files of this one, nor loses its own.
TEST(SpoolTest, AnotherFolderInItsPlaceIsLeftAlone) {
  const TempFolder folder;
  const Spool spool = Opened(folder.path());
  const auto write = [&spool](const std::string& name) {
    return spool.Write(name, DrawnRequest(1, 1, 10), DrawnPlan(1, 1), MakeMesh({.dp = 1}));
  };
  const absl::StatusOr<internal::v1::SpoolFile> own = write("1-1");
  ASSERT_THAT(own, IsOk());
  std::filesystem::rename(folder / "spool", folder / "moved");
  EXPECT_THAT(write("1-2").status(), StatusIs(absl::StatusCode::kInternal, HasSubstr("is not there any more")));
  ASSERT_THAT(Opened(folder.path()).Write("1-1", DrawnRequest(2, 1, 10), DrawnPlan(2, 1), MakeMesh({.dp = 1})), IsOk());
  const std::string others = BytesOf(folder / "spool/1-1");
  const auto is_refused =
      StatusIs(absl::StatusCode::kInternal, HasSubstr("another folder than the one that was opened"));
  EXPECT_THAT(write("1-1").status(), is_refused);
  EXPECT_THAT(write("1-2").status(), is_refused);
  EXPECT_THAT(spool.Read(*own).status(), is_refused);
  EXPECT_THAT(spool.Remove("1-1"), is_refused);
  EXPECT_EQ(BytesOf(folder / "spool/1-1"), others);
  EXPECT_EQ(FilesOf(folder / "spool").size(), 1u);
  std::filesystem::remove_all(folder / "spool");
  std::filesystem::rename(folder / "moved", folder / "spool");
  EXPECT_THAT(spool.Read(*own), IsOk()) << "it is back";
  EXPECT_THAT(write("1-2"), IsOk());
}

// --data may be a link, and be pointed at the next run while this one's server still runs.
TEST(SpoolTest, ALinkThatIsPointedElsewhereLeadsToAnotherFolder) {
  const TempFolder folder;
  for (const char* run : {"one", "two"}) {
    std::filesystem::create_directory(folder / run);
    Opened(folder / run);
  }
  std::filesystem::create_directory_symlink("one", folder / "data");
  const Spool spool = Opened(folder / "data");
  EXPECT_THAT(spool.Remove("1-1"), IsOk());
  std::filesystem::remove(folder / "data");
  std::filesystem::create_directory_symlink("two", folder / "data");
  EXPECT_THAT(spool.Remove("1-1"),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("another folder than the one that was opened")));
}

TEST(SpoolTest, SweepRemovesRequestsThatNobodyKeepsAndNothingElse) {
  const TempFolder folder;
  const Spool spool = Opened(folder.path());
  for (const char* name : {"d", "a", "b", "c"}) {
    ASSERT_THAT(spool.Write(name, DrawnRequest(1, 1, 10), DrawnPlan(1, 1), MakeMesh({.dp = 1})), IsOk());
  }
  SetBytes(folder / "spool/notes", "someone's, and longer than the magic of a spooled request");
  SetBytes(folder / "spool/short", "s");
  SetBytes(folder / "spool/older", "STEMMA SPOOL 1\r\nof a version before");
  std::filesystem::create_symlink(folder / "spool/a", folder / "spool/link");
  std::filesystem::create_directory(folder / "spool/folder");
  const absl::StatusOr<std::vector<std::string>> removed = spool.Sweep({"b", "c", "gone"});
  ASSERT_THAT(removed, IsOk());
  EXPECT_THAT(*removed, ElementsAre("a", "d", "older"));
  std::vector<std::string> left;
  for (const auto& [name, bytes] : FilesOf(folder / "spool")) left.push_back(name);
  EXPECT_THAT(left, ElementsAre("b", "c", "notes", "short"));
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "spool/link"));
}

TEST(SpoolTest, ARequestThatAnotherVersionKeptIsTold) {
  const TempFolder folder;
  const Spool spool = Opened(folder.path());
  ASSERT_THAT(spool.Write("a", DrawnRequest(1, 1, 10), DrawnPlan(1, 1), MakeMesh({.dp = 1})), IsOk());
  const std::string whole = BytesOf(folder / "spool/a");
  EXPECT_FALSE(spool.IsOfAnotherVersion("a").value_or(true));
  for (const char* version : {"STEMMA SPOOL 1\r\n", "STEMMA SPOOL 3\r\n", "STEMMA SPOOL 10\r"}) {
    SetBytes(folder / "spool/a", version + whole.substr(16));
    EXPECT_TRUE(spool.IsOfAnotherVersion("a").value_or(false)) << version;
  }
  SetBytes(folder / "spool/a", "STEMMA");  // damage: who needs it says so
  EXPECT_FALSE(spool.IsOfAnotherVersion("a").value_or(true));
  EXPECT_FALSE(spool.IsOfAnotherVersion("gone").value_or(true));
  EXPECT_THAT(spool.IsOfAnotherVersion("../a").status(), Invalid("is not a valid name"));
}

// It is as the server kept it: nobody has to restore it, nor to give up the steps that it holds.
TEST(SpoolTest, ARequestOfAnotherUserIsNoDamagedOne) {
  constexpr uid_t kNobody = 65534;
  const TempFolder folder;
  const Spool spool = Opened(folder.path());
  ASSERT_THAT(spool.Write("a", DrawnRequest(1, 1, 10), DrawnPlan(1, 1), MakeMesh({.dp = 1})), IsOk());
  for (const std::string& path : {folder.path(), folder / "spool"})
    std::filesystem::permissions(path, std::filesystem::perms(0755));
  std::filesystem::permissions(folder / "spool/a", std::filesystem::perms(0));
  const uid_t user = geteuid();
  ASSERT_EQ(seteuid(user == 0 ? kNobody : user), 0);
  const absl::Status status = spool.IsOfAnotherVersion("a").status();
  ASSERT_EQ(seteuid(user), 0);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("spool/a: Permission denied; give")));
}

TEST(SpoolTest, RemoveMayBeRepeated) {
  const TempFolder folder;
  const Spool spool = Opened(folder.path());
  ASSERT_THAT(spool.Write("a", DrawnRequest(1, 1, 10), DrawnPlan(1, 1), MakeMesh({.dp = 1})), IsOk());
  EXPECT_THAT(spool.Remove("a"), IsOk());
  EXPECT_THAT(spool.Remove("a"), IsOk());
  EXPECT_TRUE(FilesOf(folder / "spool").empty());
  std::filesystem::create_directory(folder / "spool/b");
  EXPECT_FALSE(spool.Remove("b").ok()) << "a folder is no spooled request";
}

}  // namespace
}  // namespace stemma::server
