// A spooled request that is damaged, cut, exchanged or gone is refused by name, before anything large is allocated.
#include <sys/stat.h>

#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/digest.h"
#include "common/base/error.h"
#include "common/base/mesh.h"
#include "google/protobuf/stubs/logging.h"
#include "server/store/spool.h"
#include "stemma/internal/v1/worker.pb.h"
#include "tests/server/store/drawn_requests.h"
#include "tests/server/store/store_files.h"
#include "tests/testing/status_matchers.h"

namespace stemma::server {
namespace {

using testing::IsOk;
using testing::TempFolder;

constexpr uint64_t kSeed = 11;
constexpr size_t kHeadLength = 16;  // where the first length stands

std::string LengthText(uint64_t length) { return {reinterpret_cast<const char*>(&length), sizeof(length)}; }

std::string DigestText(const std::string& bytes) {
  Sha256 sha;
  sha.Update(bytes);
  const auto digest = sha.Finish();
  return {digest.begin(), digest.end()};
}

std::string MessageText(const google::protobuf::Message& message) {
  const std::string text = message.SerializeAsString();
  return LengthText(text.size()) + text;
}

class SpoolDamageTest : public ::testing::Test {
 protected:
  SpoolDamageTest() : spool_(*Spool::Open(folder_.path())), path_(folder_ / "spool/a.req") {
    const absl::StatusOr<internal::v1::SpoolFile> file = spool_.Write("a.req", request_, plan_, MakeMesh({.dp = 2}));
    EXPECT_THAT(file, IsOk());
    row_ = *file;
    whole_ = BytesOf(path_);
  }

  void ExpectRefused(const internal::v1::SpoolFile& row, const std::string& what) const {
    const absl::Status status = spool_.Read(row).status();
    EXPECT_EQ(ErrorReason(status), "CORRUPT_SPOOL") << what << ": " << status;
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_NE(status.message().find("spool/" + row.name()), std::string::npos) << what << ": " << status;
  }

  // Reads a file of these bytes, with a digest at its end and a row that fit them.
  absl::StatusOr<SpooledRequest> ReadSealed(const std::string& bytes) const {
    const std::string digest = DigestText(bytes);
    SetBytes(path_, bytes + digest);
    internal::v1::SpoolFile row = row_;
    row.set_bytes(bytes.size() + digest.size());
    row.set_sha256(absl::BytesToHexString(digest));
    return spool_.Read(row);
  }

  const google::protobuf::LogSilencer silent_;
  const TempFolder folder_;
  const TrainingRequest request_ = DrawnRequest(kSeed, 20, 300);
  const RequestPlan plan_ = DrawnPlan(kSeed, 20);
  const Spool spool_;
  const std::string path_;
  internal::v1::SpoolFile row_;
  std::string whole_;
};

TEST_F(SpoolDamageTest, EveryFlippedByteIsRefused) {
  SplitMix64 random(kSeed);
  for (uint64_t i = 0; i < 3000; ++i) {
    const uint64_t at = i < 64 ? i : i < 160 ? whole_.size() - 1 - (i - 64) : random.Next() % whole_.size();
    std::string damaged = whole_;
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << random.Next() % 8));
    SetBytes(path_, damaged);
    ExpectRefused(row_, absl::StrCat("seed ", kSeed, ", byte ", at));
    ASSERT_FALSE(HasFailure());
  }
  SetBytes(path_, whole_);
  EXPECT_THAT(spool_.Read(row_), IsOk()) << "control";
}

// A number in the payload that is another one: the messages are whole, and only the digest tells.
TEST_F(SpoolDamageTest, WithoutTheDigestAnotherNumberWouldBeRead) {
  const std::string tokens = request_.groups[3].prompt_tokens();
  const size_t at = whole_.find(tokens);
  ASSERT_NE(at, std::string::npos);
  std::string damaged = whole_;
  damaged[at] ^= 1;
  SetBytes(path_, damaged);
  ExpectRefused(row_, "a token");
  const absl::StatusOr<SpooledRequest> read = ReadSealed(damaged.substr(0, damaged.size() - 32));
  ASSERT_THAT(read, IsOk()) << "control: nothing else sees it";
  EXPECT_NE(read->request->groups[3].prompt_tokens(), tokens) << "control";
}

TEST_F(SpoolDamageTest, ACutLongerOrEmptyFileIsRefused) {
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{16}, size_t{47}, size_t{48}, whole_.size() / 2,
                             whole_.size() - 32, whole_.size() - 1, whole_.size() + 1}) {
    std::string other = whole_;
    other.resize(bytes);
    SetBytes(path_, other);
    ExpectRefused(row_, absl::StrCat(bytes, " bytes"));
    internal::v1::SpoolFile row = row_;
    row.set_bytes(bytes);
    ExpectRefused(row, absl::StrCat(bytes, " bytes, and a row that says so"));
  }
}

// Its size is right, its digest fits its contents: the journal's row is another's.
TEST_F(SpoolDamageTest, AnExchangedFileIsRefused) {
  TrainingRequest other = request_;
  std::string& token = *other.groups[0].mutable_prompt_tokens();
  token[0] = static_cast<char>(token[0] ^ 1);
  const absl::StatusOr<internal::v1::SpoolFile> row = spool_.Write("b.req", other, plan_, MakeMesh({.dp = 2}));
  ASSERT_THAT(row, IsOk());
  ASSERT_EQ(row->bytes(), row_.bytes());
  std::filesystem::rename(folder_ / "spool/b.req", path_);
  ExpectRefused(row_, "another request's file");
  internal::v1::SpoolFile renamed = *row;
  renamed.set_name("a.req");
  EXPECT_THAT(spool_.Read(renamed), IsOk()) << "control";
}

TEST_F(SpoolDamageTest, AMissingFileALinkAndAFolderAreRefused) {
  std::filesystem::rename(path_, folder_ / "elsewhere");
  ExpectRefused(row_, "missing");
  std::filesystem::create_symlink(folder_ / "elsewhere", path_);
  ExpectRefused(row_, "a link");
  std::filesystem::remove(path_);
  std::filesystem::create_directory(path_);
  ExpectRefused(row_, "a folder");
  std::filesystem::remove(path_);
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  ExpectRefused(row_, "a fifo");
  std::filesystem::remove(path_);
  std::filesystem::rename(folder_ / "elsewhere", path_);
  EXPECT_THAT(spool_.Read(row_), IsOk()) << "control";
}

// Lengths that a signed or a 32-bit number would wrap, in a file whose digest fits: refused before they are allocated.
TEST_F(SpoolDamageTest, ALengthThatIsNotThereIsNotAllocated) {
  const std::string body = whole_.substr(0, whole_.size() - 32);
  uint64_t head_bytes = 0;
  std::memcpy(&head_bytes, whole_.data() + kHeadLength, sizeof(head_bytes));
  for (const size_t at : {kHeadLength, kHeadLength + 8 + head_bytes}) {
    for (const uint64_t length : {uint64_t{1} << 62, uint64_t{1} << 63, uint64_t{1} << 32, ~uint64_t{0},
                                  uint64_t{1} << 31, uint64_t{whole_.size()}}) {
      std::string damaged = body;
      std::memcpy(damaged.data() + at, &length, sizeof(length));
      const absl::Status status = ReadSealed(damaged).status();
      EXPECT_EQ(ErrorReason(status), "CORRUPT_SPOOL") << length << " at " << at << ": " << status;
      EXPECT_NE(status.message().find(absl::StrCat("a message of ", length, " bytes")), std::string::npos) << status;
    }
  }
  EXPECT_THAT(ReadSealed(body), IsOk()) << "control";
}

TEST_F(SpoolDamageTest, AMessageAboveTheLimitIsRefused) {
  const absl::StatusOr<Spool> small = Spool::Open(folder_.path(), 50);
  ASSERT_THAT(small, IsOk());
  const absl::Status status = small->Read(row_).status();
  EXPECT_EQ(ErrorReason(status), "CORRUPT_SPOOL") << status;
  EXPECT_NE(status.message().find("the limit is 50"), std::string::npos) << status;
}

// Chunks that are messages, and do not make a request.
TEST_F(SpoolDamageTest, GroupsOutOfOrderAreRefused) {
  const std::string head = std::string(kSpoolMagic) + MessageText(internal::v1::SpooledHead());
  const std::string end = LengthText(kSpoolEnd);
  internal::v1::PayloadChunk first, second;
  first.add_groups()->set_uid("a");
  first.add_group_indices(0);
  second = first;
  second.set_last(true);
  EXPECT_THAT(ReadSealed(head + MessageText(second) + end), IsOk()) << "control";
  EXPECT_THAT(ReadSealed(head + MessageText(first) + MessageText(second) + end), IsOk())
      << "control: a continued group";
  const auto expect_refused = [&](const std::string& bytes, const std::string& what) {
    const absl::Status status = ReadSealed(bytes).status();
    EXPECT_EQ(ErrorReason(status), "CORRUPT_SPOOL") << what << ": " << status;
  };
  expect_refused(head + MessageText(first) + end, "no last chunk");
  expect_refused(head + MessageText(second), "no end mark");
  expect_refused(head + MessageText(second) + MessageText(second) + end, "a chunk behind the last one");
  expect_refused(head + MessageText(second) + end + end, "bytes behind the end mark");
  expect_refused(std::string(kSpoolMagic), "a magic alone");
  internal::v1::SpooledHead steps;
  steps.mutable_plan()->add_steps();
  const auto with_steps = [&] { return std::string(kSpoolMagic) + MessageText(steps) + MessageText(second) + end; };
  expect_refused(with_steps(), "a step that is normalized with nothing");
  steps.add_steps();
  EXPECT_THAT(ReadSealed(with_steps()), IsOk()) << "control";
  expect_refused(std::string(16, 'x') + (head + MessageText(second) + end).substr(16), "another magic");
  const std::string older = "STEMMA SPOOL 1\r\n" + (head + MessageText(second) + end).substr(16);
  EXPECT_THAT(
      std::string(ReadSealed(older).status().message()),
      ::testing::AllOf(::testing::HasSubstr("another version of Stemma kept"),
                       ::testing::HasSubstr("verify it (stemma checkpoint verify) and start the server again; or"),
                       ::testing::HasSubstr("--durability rewind")));
  second.mutable_groups(0)->set_uid("b");
  expect_refused(head + MessageText(first) + MessageText(second) + end, "a continued group of another uid");
  second.set_group_indices(0, 2);
  expect_refused(head + MessageText(first) + MessageText(second) + end, "a group is left out");
  second.add_group_indices(3);
  expect_refused(head + MessageText(first) + MessageText(second) + end, "an index without a group");
}

// Without it the request would be computed as another one.
TEST_F(SpoolDamageTest, WhatANewerVersionSaysInAMessageIsNotPassedOver) {
  internal::v1::SpooledHead head;
  internal::v1::PayloadChunk chunk;
  chunk.set_last(true);
  const auto read = [&] {
    return ReadSealed(std::string(kSpoolMagic) + MessageText(head) + MessageText(chunk) + LengthText(kSpoolEnd));
  };
  EXPECT_THAT(read(), IsOk()) << "control";
  v1::LossConfig& loss = *head.mutable_header()->mutable_loss();
  loss.GetReflection()->MutableUnknownFields(&loss)->AddVarint(1023, 1);
  EXPECT_EQ(ErrorReason(read().status()), "CORRUPT_SPOOL");
  EXPECT_THAT(std::string(read().status().message()),
              ::testing::AllOf(::testing::HasSubstr("has field 1023 of header.loss, which this version does not know"),
                               ::testing::HasSubstr("start the version that kept it")));
  head.Clear();
  v1::Rollout& rollout = *chunk.add_groups()->add_rollouts();
  chunk.add_group_indices(0);
  rollout.GetReflection()->MutableUnknownFields(&rollout)->AddVarint(1023, 1);
  EXPECT_THAT(std::string(read().status().message()), ::testing::HasSubstr("field 1023 of groups[0].rollouts[0]"));
}

}  // namespace
}  // namespace stemma::server
