// Damage to any file of a checkpoint is refused, and the error names the file.
#include <sys/stat.h>

#include <algorithm>
#include <functional>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "server/store/checkpoint_manifest.h"
#include "tests/server/store/checkpoint_files.h"
#include "tests/testing/status_matchers.h"

namespace stemma::server {
namespace {

using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;
using testing::TempFolder;

namespace fs = std::filesystem;

constexpr uint64_t kSeed = 21;

class CheckpointDamageTest : public ::testing::Test {
 protected:
  CheckpointDamageTest() {
    const absl::StatusOr<StoredCheckpoint> stored =
        CommitSave(store_, folder_.path(), MakeSave("a", kSeed, 5), "the loader's position");
    EXPECT_THAT(stored, IsOk());
    manifest_sha256_ = stored->manifest_sha256;
    files_ = TreeOf(path_);
    EXPECT_EQ(files_.size(), 8u);
  }

  void ExpectRefused(const std::string& file, const std::string& text, const std::string& what) const {
    const absl::Status status = store_.Verify("a", manifest_sha256_).status();
    EXPECT_EQ(ErrorReason(status), "CORRUPT_CHECKPOINT") << file << " " << what << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("checkpoints/a/" + file + ": ")) << what;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text)) << file << " " << what;
  }

  std::string Path(const std::string& file) const { return path_ + "/" + file; }
  void Restore(const std::string& file) const { SetBytes(Path(file), files_.at(file)); }

  const TempFolder folder_;
  const CheckpointStore store_ = *CheckpointStore::Open(folder_.path());
  const std::string path_ = folder_ / "checkpoints/a";
  std::string manifest_sha256_;
  std::map<std::string, std::string> files_;
};

TEST_F(CheckpointDamageTest, OneFlippedBitOfAnyFileIsRefused) {
  SplitMix64 random(kSeed);
  for (const auto& [file, bytes] : files_) {
    if (bytes.empty()) continue;
    for (int i = 0; i < 60; ++i) {
      const uint64_t at = i == 0 ? 0 : i == 1 ? bytes.size() - 1 : random.Next() % bytes.size();
      std::string damaged = bytes;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << random.Next() % 8));
      SetBytes(Path(file), damaged);
      ExpectRefused(file, "has the digest", absl::StrCat("seed ", kSeed, ", byte ", at));
      // As in a directory that it was copied to, whose journal does not know it.
      EXPECT_EQ(ErrorReason(store_.Verify("a", "").status()), "CORRUPT_CHECKPOINT") << file << " byte " << at;
      ASSERT_FALSE(HasFailure());
    }
    Restore(file);
  }
  EXPECT_THAT(store_.Verify("a", manifest_sha256_), IsOk()) << "control";
}

TEST_F(CheckpointDamageTest, ACutGrownMissingOrSpecialFileIsRefused) {
  for (const auto& [file, bytes] : files_) {
    const std::string size_says = file == "manifest.json" ? "has the digest" : "bytes were written by";
    for (const size_t cut : {size_t{0}, bytes.size() / 2, bytes.size() - 1}) {
      if (cut >= bytes.size()) continue;
      SetBytes(Path(file), bytes.substr(0, cut));
      ExpectRefused(file, size_says, absl::StrCat("cut to ", cut));
    }
    SetBytes(Path(file), bytes + '\0');
    ExpectRefused(file, size_says, "grown");
    fs::remove(Path(file));
    ExpectRefused(file, "is missing", "removed");
    SetBytes(folder_ / "elsewhere", bytes);
    fs::create_symlink(folder_ / "elsewhere", Path(file));
    ExpectRefused(file, "is not a regular file", "a link");
    fs::remove(Path(file));
    fs::create_symlink(folder_ / "nowhere", Path(file));
    ExpectRefused(file, "is not a regular file", "a link to nothing");
    fs::remove(Path(file));
    fs::create_directory(Path(file));
    ExpectRefused(file, "is not a regular file", "a folder");
    fs::remove(Path(file));
    ASSERT_EQ(mkfifo(Path(file).c_str(), 0600), 0);
    ExpectRefused(file, "is not a regular file", "a fifo");
    fs::remove(Path(file));
    Restore(file);
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_THAT(store_.Verify("a", manifest_sha256_), IsOk()) << "control";
}

TEST_F(CheckpointDamageTest, AnExtraFileThatALoaderWouldTakeIsRefused) {
  for (const char* file : {"model.safetensors.index.json", "model-9.safetensors", "optim/manifest.json"}) {
    SetBytes(Path(file), "");
    ExpectRefused(file, "is no file of the checkpoint", "extra");
    fs::remove(Path(file));
    fs::create_directory(Path(file));
    ExpectRefused(file, "is not a regular file", "a folder");
    fs::remove(Path(file));
  }
  EXPECT_THAT(store_.Verify("a", manifest_sha256_), IsOk()) << "control";
}

// A checkpoint that was passed over for a user's notes would cost the steps since the one before.
TEST_F(CheckpointDamageTest, WhatNobodyReadsIsNoDamage) {
  for (const char* file : {"NOTES.txt", ".DS_Store", "optim/extra", "additional_chat_templates/extra"})
    SetBytes(Path(file), "x");
  fs::create_directories(Path(".cache/huggingface"));
  fs::create_directory(Path("optim/optim"));
  fs::create_symlink(folder_.path(), Path("link"));
  EXPECT_THAT(store_.Verify("a", manifest_sha256_), IsOk());
}

// A checkpoint that was saved without chat templates may be given those of the model, by a link.
TEST_F(CheckpointDamageTest, AnotherThingOfTheNameOfAFolderWithoutPartsIsNoDamage) {
  DrawnSave save = MakeSave("b", 2, 6);
  std::erase_if(save.contents, [](const auto& file) { return file.first.starts_with(kChatTemplatesFolder); });
  auto& parts = *save.manifest.mutable_parts();
  parts.erase(std::remove_if(parts.begin(), parts.end(),
                             [&](const auto& part) { return !save.contents.contains(part.file()); }),
              parts.end());
  ASSERT_THAT(CommitSave(store_, folder_.path(), save, ""), IsOk());
  const fs::path templates = fs::path(folder_.path()) / "checkpoints/b" / kChatTemplatesFolder;
  fs::create_symlink(Path(kChatTemplatesFolder), templates);
  EXPECT_THAT(store_.Verify("b", ""), IsOk()) << "a link";
  fs::remove(templates);
  SetBytes(templates, "a file");
  EXPECT_THAT(store_.Verify("b", ""), IsOk()) << "a file";
}

// Sizes are equal, so that only the digests tell.
TEST_F(CheckpointDamageTest, SwappedFilesAreRefused) {
  DrawnSave save = MakeSave("b", kSeed, 5);
  AddPart(save, "twin-1", 3, {});
  AddPart(save, "twin-2", 4, {});
  save.manifest.mutable_parts()->DeleteSubrange(7, 2);
  save.contents["twin-1"] = "12345";
  save.contents["optim/twin-2"] = "12354";
  AddPart(save, "twin-1", 3, {{0, 5}});
  AddPart(save, "optim/twin-2", 4, {{0, 5}});
  ASSERT_THAT(CommitSave(store_, folder_.path(), save, ""), IsOk());
  const std::string b = folder_ / "checkpoints/b";
  fs::rename(b + "/twin-1", b + "/swap");
  fs::rename(b + "/optim/twin-2", b + "/twin-1");
  fs::rename(b + "/swap", b + "/optim/twin-2");
  const absl::Status status = store_.Verify("b", "").status();
  EXPECT_EQ(ErrorReason(status), "CORRUPT_CHECKPOINT") << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("checkpoints/b/optim/twin-2: what rank 4 wrote"));
}

TEST_F(CheckpointDamageTest, AnotherCheckpointUnderThisNameIsRefused) {
  ASSERT_THAT(CommitSave(store_, folder_.path(), MakeSave("b", 2, 6), ""), IsOk());
  fs::rename(path_, folder_ / "away");
  fs::rename(folder_ / "checkpoints/b", path_);
  ExpectRefused("manifest.json", "has the digest", "by its digest");
  manifest_sha256_.clear();
  ExpectRefused("manifest.json", "is the manifest of \"b\"", "by its name");
}

TEST_F(CheckpointDamageTest, ALinkInPlaceOfAFolderIsNotFollowed) {
  for (const auto& [name, file] :
       {std::pair(std::string("optim"), std::string("rank-0.safetensors")), {kChatTemplatesFolder, "tool_use.jinja"}}) {
    fs::rename(Path(name), folder_ / name);
    fs::create_directory_symlink(folder_ / name, Path(name));
    ExpectRefused(name, "is no folder, or a link", "a link to it");
    fs::remove(Path(name));
    SetBytes(Path(name), "a file");
    ExpectRefused(name, "is no folder, or a link", "a file");
    fs::remove(Path(name));
    ExpectRefused(absl::StrCat(name, "/", file), "bytes were written by rank 0", "not there");
    fs::rename(folder_ / name, Path(name));
    EXPECT_THAT(store_.Verify("a", manifest_sha256_), IsOk()) << "control";
  }
  fs::rename(path_, folder_ / "away");
  fs::create_directory_symlink(folder_ / "away", path_);
  const absl::Status status = store_.Verify("a", manifest_sha256_).status();
  EXPECT_EQ(ErrorReason(status), "CORRUPT_CHECKPOINT") << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("checkpoints/a: is a link"));
  EXPECT_EQ(store_.Retire("a").status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(store_.Scan()->checkpoints.empty());
}

// A manifest of another writer: each would read or allocate what is not there.
TEST_F(CheckpointDamageTest, AHostileManifestIsRefused) {
  manifest_sha256_.clear();
  const std::string& text = files_.at("manifest.json");
  const auto with = [&](const std::string& old, const std::string& now) {
    const size_t at = text.find(old);
    EXPECT_NE(at, std::string::npos) << old;
    std::string changed = text;
    return Sealed(changed.replace(at, old.size(), now));
  };
  for (const std::string& hostile :
       {with("\"config.json\"", "\"../config.json\""), with("\"config.json\"", "\"/etc/passwd\""),
        with("\"config.json\"", "\"empty\""), with("\"4000\"", "\"4001\""),
        with("\"4000\"", "\"18446744073709551615\""), with("\"4000\"", "\"99999999999999999999\""),
        with("\"4000\"", "-1"), with("\"4000\"", "1e300"), with("\"version\":2", "\"version\":2,\"version\":2"),
        std::string(100000, '['), std::string("{}"), std::string(), text.substr(0, text.size() / 2), text + text}) {
    SetBytes(Path("manifest.json"), hostile);
    const absl::Status status = store_.Verify("a", "").status();
    EXPECT_EQ(ErrorReason(status), "CORRUPT_CHECKPOINT") << hostile.substr(0, 200) << ": " << status;
    EXPECT_LT(status.message().size(), 1000u);
  }
  SetBytes(Path("manifest.json"), with("\"name\":\"a\"", "\"name\":\"a\",\"extra\":1"));
  EXPECT_THAT(store_.Verify("a", "").status(), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("extra")));
  std::string damaged = text;
  damaged[damaged.find("\"version\":2") + 10] = '3';
  SetBytes(Path("manifest.json"), damaged);
  ExpectRefused("manifest.json", "has the version 3, this program reads 2", "a version that the seal denies");
  EXPECT_TRUE(store_.Scan()->checkpoints.empty());
  fs::resize_file(Path("manifest.json"), kManifestBytesMax + 1);
  ExpectRefused("manifest.json", "the limit is 268435456", "a sparse file that is too long");
}

}  // namespace
}  // namespace stemma::server
