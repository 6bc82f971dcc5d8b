// A checkpoint is found whole under its name, or not at all; what cannot be saved leaves nothing.
#include "server/store/checkpoint_store.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <vector>

#include "common/base/error.h"
#include "common/base/message_sizes.h"
#include "server/store/checkpoint_manifest.h"
#include "server/store/checkpoint_parts.h"
#include "tests/server/store/checkpoint_files.h"
#include "tests/testing/file_size_limit.h"
#include "tests/testing/status_matchers.h"

namespace stemma::server {
namespace {

using testing::FileSizeLimit;
using ::testing::HasSubstr;
using testing::Invalid;
using testing::IsOk;
using testing::StatusIs;
using testing::TempFolder;

namespace fs = std::filesystem;

class CheckpointStoreTest : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) const { return folder_ / ("checkpoints/" + name); }
  size_t NumEntries() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(Path("")), fs::directory_iterator()));
  }

  // Expects the save's commit to fail so, and to leave nothing.
  void ExpectRefused(const DrawnSave& save, const std::string& temporary, const std::string& reason,
                     const std::string& text, const std::string& client_state = "") {
    const size_t before = NumEntries();
    const absl::Status status = store_.Commit(temporary, save.manifest, client_state).status();
    EXPECT_EQ(ErrorReason(status), reason) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
    EXPECT_FALSE(fs::exists(Path(temporary))) << "the temporary folder stays";
    EXPECT_EQ(NumEntries(), before - 1);
  }

  const TempFolder folder_;
  const CheckpointStore store_ = *CheckpointStore::Open(folder_.path());
};

TEST_F(CheckpointStoreTest, WhatWasSavedIsFoundVerifiedAndListed) {
  const DrawnSave save = MakeSave("step-12", 1, 12);
  const absl::StatusOr<StoredCheckpoint> stored = CommitSave(store_, folder_.path(), save, "where \0 the loader is");
  ASSERT_THAT(stored, IsOk());
  internal::v1::CheckpointManifest expected = save.manifest;
  expected.clear_parts();
  expected.set_version(kManifestVersion);
  EXPECT_EQ(stored->manifest.SerializeAsString(), expected.SerializeAsString());
  EXPECT_EQ(stored->client_state, "where \0 the loader is");
  auto files = save.contents;
  files["client_state"] = stored->client_state;
  files["manifest.json"] = BytesOf(Path("step-12/manifest.json"));
  EXPECT_TRUE(TreeOf(Path("step-12")) == files);
  EXPECT_EQ(stored->manifest_sha256, DigestOfBytes(files["manifest.json"]));
  uint64_t bytes = 0;
  for (const auto& [name, content] : files) bytes += content.size();
  EXPECT_EQ(stored->bytes, bytes);
  EXPECT_EQ(NumEntries(), 1u);

  const CheckpointStore reopened = *CheckpointStore::Open(folder_.path());
  for (const std::string& digest : {stored->manifest_sha256, std::string()}) {
    const absl::StatusOr<StoredCheckpoint> verified = reopened.Verify("step-12", digest);
    ASSERT_THAT(verified, IsOk());
    EXPECT_EQ(verified->manifest.SerializeAsString(), expected.SerializeAsString());
    EXPECT_EQ(verified->client_state, stored->client_state);
    EXPECT_EQ(verified->manifest_sha256, stored->manifest_sha256);
    EXPECT_EQ(verified->bytes, bytes);
  }
  const absl::StatusOr<ScannedCheckpoints> found = reopened.Scan();
  ASSERT_THAT(found, IsOk());
  ASSERT_EQ(found->checkpoints.size(), 1u);
  EXPECT_EQ(found->checkpoints[0].manifest.SerializeAsString(), expected.SerializeAsString());
  EXPECT_EQ(found->checkpoints[0].manifest_sha256, stored->manifest_sha256);
  EXPECT_EQ(found->checkpoints[0].bytes, bytes);
  EXPECT_EQ(found->checkpoints[0].client_state, "") << "the manifest alone is read";
}

// Pieces end inside a read, and reads inside a piece.
TEST_F(CheckpointStoreTest, AFileOfManyReadsIsComparedWhole) {
  const DrawnSave save = MakeSave("large", 3, 1, (9 << 20) + 5);
  ASSERT_THAT(CommitSave(store_, folder_.path(), save, ""), IsOk());
  uint64_t told_bytes = 0;
  const auto count = [&](uint64_t bytes) { return told_bytes += bytes, true; };
  EXPECT_THAT(store_.Verify("large", "", count), IsOk());
  uint64_t bytes_of_files = 0;
  for (const auto& [name, content] : save.contents) bytes_of_files += content.size();
  EXPECT_EQ(told_bytes, bytes_of_files);
  for (const uint64_t at : {uint64_t{0}, uint64_t{(4 << 20) - 1}, uint64_t{4 << 20}, uint64_t{(9 << 20) + 4}}) {
    std::string bytes = save.contents.at("model.safetensors");
    bytes[at] ^= 1;
    SetBytes(Path("large/model.safetensors"), bytes);
    EXPECT_EQ(ErrorReason(store_.Verify("large", "").status()), "CORRUPT_CHECKPOINT") << at;
  }
}

TEST_F(CheckpointStoreTest, ScanOrdersByStepAndNameAndLeavesOutWhatIsDamaged) {
  for (const auto& [name, step] : {std::pair("b", 9), {"a", 9}, {"z", 2}, {"c", 100}, {"hurt", 3}, {"other", 4}}) {
    ASSERT_THAT(CommitSave(store_, folder_.path(), MakeSave(name, 1, static_cast<uint64_t>(step)), ""), IsOk());
  }
  SetBytes(Path("hurt/manifest.json"), BytesOf(Path("hurt/manifest.json")).substr(1));
  fs::rename(Path("other"), Path("renamed"));
  fs::create_directory(Path("no-manifest"));
  fs::create_directory_symlink(Path("a"), Path("link"));
  SetBytes(Path("file"), "");
  for (const std::string to : {"file", "nothing"}) fs::create_symlink(to, Path("link-to-" + to));
  fs::create_directory(Path(".tmp-x"));
  const absl::StatusOr<ScannedCheckpoints> found = store_.Scan();
  ASSERT_THAT(found, IsOk());
  std::vector<std::string> names;
  for (const StoredCheckpoint& stored : found->checkpoints) names.push_back(stored.manifest.name());
  EXPECT_THAT(names, ::testing::ElementsAre("z", "a", "b", "c"));
  std::vector<::testing::Matcher<std::string>> reasons;
  for (const char* name : {"hurt", "renamed", "no-manifest", "link", "link-to-nothing"}) {
    reasons.push_back(::testing::ContainsRegex(absl::StrCat("checkpoints/", name, "[^a-z-]")));
  }
  EXPECT_THAT(found->left_out, ::testing::UnorderedElementsAreArray(reasons)) << "each names its folder";
  EXPECT_TRUE(fs::exists(Path("hurt"))) << "it is left for the operator";
}

// A checkpoint that cannot be read today is not gone: who took it for that would drop it for good.
TEST_F(CheckpointStoreTest, AScanThatTheSystemRefusesIsNoAnswer) {
  ASSERT_THAT(CommitSave(store_, folder_.path(), MakeSave("whole", 1, 1), ""), IsOk());
  struct rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  std::vector<int> taken;  // all descriptors but one, which the list of names needs
  const struct rlimit few = {.rlim_cur = 64, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  for (int fd = open("/dev/null", O_RDONLY); fd >= 0; fd = open("/dev/null", O_RDONLY)) taken.push_back(fd);
  close(taken.back());
  taken.pop_back();
  const absl::Status status = store_.Scan().status();
  for (const int fd : taken) close(fd);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInternal, HasSubstr("whole")));
  EXPECT_EQ(store_.Scan()->checkpoints.size(), 1u);
}

TEST_F(CheckpointStoreTest, TheFolderItselfIsNoLink) {
  const TempFolder other;
  fs::create_directory(other / "target");
  fs::create_directory_symlink(other / "target", other / "checkpoints");
  EXPECT_THAT(CheckpointStore::Open(other.path()), Invalid("is a link"));
  EXPECT_THAT(CheckpointStore::Open(other / "none"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("none")));
}

TEST_F(CheckpointStoreTest, BeginEmptiesWhatWasThereAndOthersMayReadIt) {
  const mode_t mask = umask(0077);
  ASSERT_EQ(*store_.Begin("a"), ".tmp-a");
  SetBytes(Path(".tmp-a/optim/old"), "old");
  ASSERT_EQ(*store_.Begin("a"), ".tmp-a");
  umask(mask);
  for (const char* name : {".tmp-a", ".tmp-a/optim"}) {
    struct stat info;
    ASSERT_EQ(stat(Path(name).c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0755u) << name;
  }
  EXPECT_TRUE(fs::is_empty(Path(".tmp-a/optim")) && !fs::exists(Path(".tmp-a/additional_chat_templates")));
}

TEST_F(CheckpointStoreTest, AnExistingNameIsRefusedAndKept) {
  ASSERT_THAT(CommitSave(store_, folder_.path(), MakeSave("a", 1, 1), "one"), IsOk());
  const auto before = TreeOf(Path("a"));
  const DrawnSave second = MakeSave("a", 2, 2);
  const std::string temporary = WriteSave(store_, folder_.path(), second);
  const absl::Status status = store_.Commit(temporary, second.manifest, "two").status();
  EXPECT_EQ(ErrorReason(status), "CHECKPOINT_EXISTS") << status;
  EXPECT_EQ(GetErrorDetails(status).metadata.at("name"), "a");
  EXPECT_FALSE(fs::exists(Path(temporary)));
  EXPECT_TRUE(TreeOf(Path("a")) == before);
}

TEST_F(CheckpointStoreTest, ASaveAndARemovalOfOneNameAreApart) {
  ASSERT_THAT(CommitSave(store_, folder_.path(), MakeSave("a", 1, 1), ""), IsOk());
  const DrawnSave again = MakeSave("a", 2, 2);
  const std::string temporary = WriteSave(store_, folder_.path(), again);
  const absl::StatusOr<std::string> retired = store_.Retire("a");
  ASSERT_THAT(retired, IsOk());
  EXPECT_EQ(retired->substr(0, 5), ".tmp-");
  EXPECT_THAT(store_.Retire("none"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("checkpoints/none")));
  EXPECT_EQ(*store_.Retire("a"), *retired) << "the call before may have failed after its rename";
  EXPECT_TRUE(store_.Scan()->checkpoints.empty());
  ASSERT_THAT(store_.Commit(temporary, again.manifest, ""), IsOk());
  EXPECT_TRUE(fs::exists(Path(*retired + "/manifest.json")));
  ASSERT_EQ(*store_.Retire("a"), *retired) << "over one that was not removed yet";
  store_.Abandon(*retired);
  EXPECT_EQ(NumEntries(), 0u);
}

TEST_F(CheckpointStoreTest, AbandonRemovesTemporaryFoldersAlone) {
  ASSERT_THAT(CommitSave(store_, folder_.path(), MakeSave("a", 1, 1), ""), IsOk());
  SetBytes(folder_ / "journal", "here");
  for (const char* name : {"a", "", ".", "..", "../journal", ".tmp-", ".tmp-../../journal", ".tmp-/../a", "/tmp"}) {
    store_.Abandon(name);
    EXPECT_FALSE(store_.Commit(name, MakeSave("b", 1, 1).manifest, "").ok()) << name;
  }
  EXPECT_THAT(store_.Verify("a", ""), IsOk());
  EXPECT_EQ(BytesOf(folder_ / "journal"), "here");
}

TEST_F(CheckpointStoreTest, AReadingThatIsStoppedFindsNothingAndASaveLeavesNothing) {
  ASSERT_THAT(CommitSave(store_, folder_.path(), MakeSave("a", 1, 1), ""), IsOk());
  const auto stopped = [](uint64_t) { return false; };
  EXPECT_THAT(store_.Verify("a", "", stopped).status(), StatusIs(absl::StatusCode::kCancelled, HasSubstr("stopped")));
  EXPECT_THAT(store_.Verify("a", ""), IsOk());
  const DrawnSave save = MakeSave("b", 2, 2);
  const std::string temporary = WriteSave(store_, folder_.path(), save);
  EXPECT_THAT(store_.Commit(temporary, save.manifest, "", stopped).status(),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("stopped")));
  EXPECT_EQ(NumEntries(), 1u);
}

TEST_F(CheckpointStoreTest, ANameIsNeverAPath) {
  for (const std::string& name :
       {std::string(), std::string("."), std::string("../a"), std::string("a/b"), std::string("/a"),
        std::string(".tmp-a"), std::string("a\0b", 3), std::string(129, 'a')}) {
    EXPECT_THAT(store_.Begin(name), Invalid("not a valid name")) << name;
    EXPECT_THAT(store_.Verify(name, ""), Invalid("not a valid name")) << name;
    EXPECT_THAT(store_.Retire(name), Invalid("not a valid name")) << name;
    DrawnSave save = MakeSave("a", 1, 1);
    const std::string temporary = WriteSave(store_, folder_.path(), save);
    save.manifest.set_name(name);
    ExpectRefused(save, temporary, "", "not a valid name");
  }
  EXPECT_THAT(store_.Verify("none", ""), StatusIs(absl::StatusCode::kNotFound, HasSubstr("checkpoints/none")));
}

TEST_F(CheckpointStoreTest, APartsFileNameIsNeverAPath) {
  SetBytes(folder_ / "checkpoints/x", "outside");
  for (const std::string& file :
       std::vector<std::string>{"../x", "/etc/hostname", "optim", "", "optim/", "optim/../x", "a/b", "optim/a/b",
                                "manifest.json", "client_state", ".hidden", std::string("a\0b", 3), "optim//a",
                                kChatTemplatesFolder, "additional_chat_templates/../x", "Optim/a"}) {
    DrawnSave save = MakeSave("a", 1, 1);
    const std::string temporary = WriteSave(store_, folder_.path(), save);
    save.manifest.mutable_parts(4)->set_file(file);
    const absl::Status status = store_.Commit(temporary, save.manifest, "").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << file << ": " << status;
    EXPECT_EQ(NumEntries(), 1u) << file;
  }
}

TEST_F(CheckpointStoreTest, PartsThatAreNotEveryByteOnceAreRefused) {
  using Change = void (*)(internal::v1::CheckpointManifest&);
  const std::vector<std::pair<std::string, Change>> cases = {
      {"written twice", [](auto& m) { m.mutable_parts(2)->mutable_ranges(0)->set_begin(3332); }},
      {"nobody wrote", [](auto& m) { m.mutable_parts(2)->mutable_ranges(0)->set_begin(3334); }},
      {"nobody wrote", [](auto& m) { m.mutable_parts(1)->mutable_ranges(0)->set_begin(1); }},
      {"nobody wrote", [](auto& m) { m.mutable_parts()->DeleteSubrange(2, 1); }},
      {"has 4000 bytes; 4001 bytes were written by rank 1",
       [](auto& m) { m.mutable_parts(1)->mutable_ranges(0)->set_bytes(4001); }},
      {"has 4000 bytes; 3999 bytes were written by rank 1",
       [](auto& m) { m.mutable_parts(1)->mutable_ranges(0)->set_bytes(3999); }},
      {"written twice", [](auto& m) { *m.add_parts() = internal::v1::CheckpointPart(m.parts(1)); }},
      {"config.json: is no file of the checkpoint", [](auto& m) { m.mutable_parts()->DeleteSubrange(4, 1); }},
      {"empty: is no file of the checkpoint", [](auto& m) { m.mutable_parts()->DeleteSubrange(5, 1); }},
      {"empty-2: is missing", [](auto& m) { m.mutable_parts(5)->set_file("empty-2"); }},
      {"which is empty", [](auto& m) { m.mutable_parts(1)->add_ranges()->set_begin(4001); }},
      {"touches the one before", [](auto& m) { m.mutable_parts(0)->mutable_ranges()->SwapElements(0, 1); }},
      {"no file can hold", [](auto& m) { m.mutable_parts(1)->mutable_ranges(0)->set_bytes(~uint64_t{0}); }},
      {"no file can hold", [](auto& m) { m.mutable_parts(1)->mutable_ranges(0)->set_begin(~uint64_t{0}); }},
      {"not 64 hexadecimal digits", [](auto& m) { m.mutable_parts(1)->set_sha256("12"); }},
      {"not 64 hexadecimal digits", [](auto& m) { m.mutable_parts(1)->set_sha256(std::string(64, 'g')); }},
      {"rank 1 wrote between bytes 3333 and 6666",
       [](auto& m) { m.mutable_parts(2)->set_sha256(std::string(64, '0')); }},
      {"empty: what rank 0 wrote has", [](auto& m) { m.mutable_parts(5)->set_sha256(std::string(64, '0')); }},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE("case " + std::to_string(i));
    DrawnSave save = MakeSave("a", 1, 1);
    const std::string temporary = WriteSave(store_, folder_.path(), save);
    cases[i].second(save.manifest);
    ExpectRefused(save, temporary, "CORRUPT_CHECKPOINT", cases[i].first);
  }
}

// Ranges of one part that touch are not two.
TEST_F(CheckpointStoreTest, RangesThatTouchAreRefused) {
  DrawnSave save = MakeSave("a", 1, 1);
  save.manifest.mutable_parts(1)->clear_ranges();
  for (const uint64_t begin : {0, 2000}) {
    internal::v1::ByteRange& range = *save.manifest.mutable_parts(1)->add_ranges();
    range.set_begin(begin);
    range.set_bytes(2000);
  }
  ExpectRefused(save, WriteSave(store_, folder_.path(), save), "CORRUPT_CHECKPOINT", "touches the one before");
}

// A matrix of 500,000 rows, each of them of three ranks, behind 40 bytes of rank 2: longer than what is read at a time.
DrawnSave SaveOfColumns() {
  DrawnSave save = MakeSave("a", 1, 1);
  constexpr uint64_t kRows = 500'000;
  save.contents["columns"] = DrawnContent(9, 40 + kRows * 10);
  AddColumns(save, "columns", 2, /*front=*/true, Columns(40, 3, kRows, 10));
  AddColumns(save, "columns", 1, /*front=*/false, Columns(43, 5, kRows, 10));
  AddColumns(save, "columns", 0, /*front=*/false, Columns(48, 2, kRows, 10));
  return save;
}

TEST_F(CheckpointStoreTest, ColumnsOfAMatrixAreOneRange) {
  const DrawnSave save = SaveOfColumns();
  ASSERT_THAT(CommitSave(store_, folder_.path(), save, ""), IsOk());
  ASSERT_THAT(store_.Verify("a", "").status(), IsOk());
  EXPECT_LT(BytesOf(Path("a/manifest.json")).size(), 4000u) << "whatever rows it has";
  std::string damaged = save.contents.at("columns");
  damaged[40 + 499'999 * 10 + 4] ^= 1;
  SetBytes(Path("a/columns"), damaged);
  const absl::Status status = store_.Verify("a", "").status();
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("what rank 1 wrote between bytes 43 and 5000038"));
}

TEST_F(CheckpointStoreTest, ColumnsThatAreNotEveryByteOnceAreRefused) {
  using Change = void (*)(internal::v1::ByteRange&);
  const std::vector<std::pair<std::string, Change>> cases = {
      {"nobody wrote", [](auto& r) { r.set_begin(r.begin() + 1); }},
      {"written twice", [](auto& r) { r.set_begin(r.begin() - 1); }},
      {"written twice", [](auto& r) { r.set_bytes(r.bytes() + 1); }},
      {"nobody wrote", [](auto& r) { r.set_bytes(r.bytes() - 1); }},
      {"nobody wrote", [](auto& r) { r.set_runs(r.runs() - 1); }},
      {"those before end at", [](auto& r) { r.set_stride(r.stride() + 1); }},
      {"which are no runs", [](auto& r) { r.set_runs(1); }},
      {"which are no runs", [](auto& r) { r.set_runs(0); }},
      {"which are no runs", [](auto& r) { r.set_stride(0); }},
      {"which are no runs", [](auto& r) { r.set_bytes(r.stride()); }},
      {"which is empty", [](auto& r) { r.set_bytes(0); }},
      {"no file can hold", [](auto& r) { r.set_stride(uint64_t{1} << 62); }},
      {"no file can hold", [](auto& r) { r.set_runs(~uint64_t{0}); }},
      {"more than the 134217728 pieces", [](auto& r) { r.set_runs(kPiecesMax - 10); }},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE("case " + std::to_string(i));
    DrawnSave save = SaveOfColumns();
    const std::string temporary = WriteSave(store_, folder_.path(), save);
    auto& parts = *save.manifest.mutable_parts();
    cases[i].second(*parts[parts.size() - 2].mutable_ranges(0));
    ExpectRefused(save, temporary, "CORRUPT_CHECKPOINT", cases[i].first);
  }
  DrawnSave save = SaveOfColumns();
  const std::string temporary = WriteSave(store_, folder_.path(), save);
  save.manifest.mutable_parts(save.manifest.parts_size() - 3)->mutable_ranges(1)->set_begin(39);
  ExpectRefused(save, temporary, "CORRUPT_CHECKPOINT", "touches the one before");
}

TEST_F(CheckpointStoreTest, AClientStateThatIsTooLongOrThereAlreadyIsRefused) {
  const DrawnSave save = MakeSave("a", 1, 1);
  ExpectRefused(save, WriteSave(store_, folder_.path(), save), "LIMIT_EXCEEDED", "the limit is 1048576",
                std::string(kClientStateBytesMax + 1, 'x'));
  const std::string temporary = WriteSave(store_, folder_.path(), save);
  SetBytes(Path(temporary + "/client_state"), "a rank's");
  ExpectRefused(save, temporary, "CORRUPT_CHECKPOINT", "client_state: is there already", "mine");
  const std::string second = WriteSave(store_, folder_.path(), save);
  SetBytes(Path(second + "/client_state"), "a rank's");
  ExpectRefused(save, second, "CORRUPT_CHECKPOINT", "client_state: is no file of the checkpoint");
  ASSERT_THAT(CommitSave(store_, folder_.path(), save, std::string(kClientStateBytesMax, 'x')), IsOk());
  EXPECT_EQ(store_.Verify("a", "")->client_state, std::string(kClientStateBytesMax, 'x'));
}

// The manifest is some 2,000 bytes; client_state may pass it.
TEST_F(CheckpointStoreTest, ADiskThatIsFullLeavesNothing) {
  ASSERT_THAT(CommitSave(store_, folder_.path(), MakeSave("old", 1, 1), "old"), IsOk());
  const DrawnSave save = MakeSave("new", 2, 2);
  for (const auto& [limit, file] : {std::pair(100, "client_state"), {1000, "manifest.json"}}) {
    const std::string temporary = WriteSave(store_, folder_.path(), save);
    {
      const FileSizeLimit full(static_cast<uint64_t>(limit));
      ExpectRefused(save, temporary, "FILE_TOO_LARGE", file, std::string(500, 's'));
    }
  }
  EXPECT_THAT(store_.Verify("old", ""), IsOk());
  EXPECT_THAT(CommitSave(store_, folder_.path(), save, std::string(500, 's')), IsOk()) << "there is room again";
}

}  // namespace
}  // namespace stemma::server
