// Which weights a server that starts loads first, by what lies in its data directory.
#include "server/coordinator/first_weights.h"

#include <filesystem>
#include <string>

#include "gtest/gtest.h"
#include "server/protocol/checkpoint_rules.h"
#include "tests/server/store/checkpoint_files.h"
#include "tests/testing/counted_allocations.h"
#include "tests/testing/status_matchers.h"

namespace stemma::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;
using testing::TempFolder;

const std::string kNewest(kResumeNewest), kNothing(kResumeNothing);

class FirstWeightsTest : public ::testing::Test {
 protected:
  void Save(const std::string& name, uint64_t step) const {
    ASSERT_THAT(CommitSave(*CheckpointStore::Open(folder_.path()), folder_.path(), MakeSave(name, 1, step), ""),
                IsOk());
  }
  std::string Manifest(const std::string& name) const { return folder_ / ("checkpoints/" + name + "/manifest.json"); }
  std::unique_ptr<Storage> Open() const {
    absl::StatusOr<std::unique_ptr<Storage>> storage = Storage::Open(folder_.path(), /*requests_kept=*/4);
    EXPECT_THAT(storage, IsOk());
    return *std::move(storage);
  }

  const TempFolder folder_;
};

TEST_F(FirstWeightsTest, ANewDirectoryBeginsWithItsNewestCheckpointOrNone) {
  EXPECT_EQ(ChooseResumed(kNewest, *Open()).value_or("none"), "");
  Save("step-4", 4);
  Save("step-9", 9);
  std::filesystem::create_directory(folder_ / "checkpoints/notes");
  EXPECT_EQ(ChooseResumed(kNewest, *Open()).value_or("none"), "step-9");
  EXPECT_EQ(ChooseResumed("step-4", *Open()).value_or("none"), "step-4");
  EXPECT_EQ(ChooseResumed(kNothing, *Open()).value_or("none"), "");
  EXPECT_THAT(ChooseResumed("step-5", *Open()).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("step-5")));
}

// The steps that were moved here would be trained again from the model directory, and nobody would be told.
TEST_F(FirstWeightsTest, ANewDirectoryWithoutAWholeCheckpointDoesNotBeginAnew) {
  for (const bool damaged : {false, true}) {
    Save("step-4", 4);
    if (damaged) {
      SetBytes(Manifest("step-4"), BytesOf(Manifest("step-4")).substr(1));
    } else {
      std::filesystem::remove(Manifest("step-4"));
    }
    for (int starts = 0; starts < 2; ++starts) {  // another start says the same
      EXPECT_THAT(ChooseResumed(kNewest, *Open()).status(),
                  StatusIs(absl::StatusCode::kFailedPrecondition,
                           AllOf(HasSubstr("checkpoints/step-4"), HasSubstr("--resume none"))));
    }
    EXPECT_EQ(ChooseResumed(kNothing, *Open()).value_or("none"), "");
    std::filesystem::remove_all(folder_ / "checkpoints/step-4");
  }
  EXPECT_EQ(ChooseResumed(kNewest, *Open()).value_or("none"), "") << "control";
}

// No steps can have been moved here in a file. A link that leads nowhere may be to a disk that is not mounted.
TEST_F(FirstWeightsTest, AFileBesideTheCheckpointsIsNone) {
  ASSERT_EQ(ChooseResumed(kNewest, *Open()).value_or("none"), "");
  SetBytes(folder_ / "checkpoints/file", "notes");
  std::filesystem::create_symlink(folder_ / "checkpoints/file", folder_ / "checkpoints/link-to-file");
  EXPECT_EQ(ChooseResumed(kNewest, *Open()).value_or("none"), "");
  for (const std::string& target : {folder_.path(), std::string("nothing")}) {
    std::filesystem::create_symlink(target, folder_ / "checkpoints/link");
    EXPECT_THAT(ChooseResumed(kNewest, *Open()).status(),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("checkpoints/link")));
    std::filesystem::remove(folder_ / "checkpoints/link");
  }
}

TEST_F(FirstWeightsTest, AFewOfManyFoldersAreNamed) {
  for (const char* name : {"a", "b", "c", "d", "e"}) {
    std::filesystem::create_directories(folder_ / ("checkpoints/" + std::string(name)));
  }
  EXPECT_THAT(ChooseResumed(kNewest, *Open()).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("; and 2 more; ")));
}

void KeepKnown(const std::string& folder) {
  internal::v1::JournalRow row;
  internal::v1::JournalState& state = *row.mutable_snapshot();
  state.set_epoch(1);
  state.set_lineage("lineage-1");
  state.set_step(9);
  state.set_weight_version(9);
  for (const auto& [name, step] : {std::pair("step-4", 4), {"step-9", 9}}) {
    internal::v1::KnownCheckpoint& known = *state.add_checkpoints();
    known.set_name(name);
    known.set_lineage("lineage-1");
    known.set_step(static_cast<uint64_t>(step));
    known.set_weight_version(static_cast<uint64_t>(step));
  }
  absl::StatusOr<Journal> journal = Journal::Open(folder);
  ASSERT_THAT(journal, IsOk());
  ASSERT_THAT(journal->Append(1, row.SerializeAsString(), /*settles=*/true), IsOk());
}

void JournalWithRequests(const std::string& folder, int requests) {
  internal::v1::JournalRow row;
  internal::v1::JournalState& state = *row.mutable_snapshot();
  state.set_epoch(1);
  state.set_lineage("lineage-1");
  for (int i = 0; i < requests; ++i) {
    internal::v1::KnownRequest& known = *state.add_requests();
    known.set_request_id("r-" + std::to_string(i));
    known.mutable_status()->set_state(v1::DONE);
  }
  absl::StatusOr<Journal> journal = Journal::Open(folder);
  ASSERT_THAT(journal, IsOk());
  ASSERT_THAT(journal->Append(1, row.SerializeAsString(), /*settles=*/true), IsOk());
}

// The journal knows of one that is gone; its weights are not the ones that are loaded.
TEST_F(FirstWeightsTest, RecoveryBeginsWithACheckpointThatIsThere) {
  KeepKnown(folder_.path());
  DrawnSave save = MakeSave("step-4", 1, 4);
  save.manifest.set_journal_row(1);
  ASSERT_THAT(CommitSave(*CheckpointStore::Open(folder_.path()), folder_.path(), save, ""), IsOk());
  const std::unique_ptr<Storage> storage = Open();
  EXPECT_EQ(ChooseResumed(kNewest, *storage).value_or("none"), "") << "the journal is not new";
  for (const std::string name : {"step-4", "step-9", "gone"}) {  // a unit file names it at every start
    EXPECT_EQ(ChooseResumed(name, *storage).value_or("none"), "") << name;
  }
  EXPECT_EQ(ChooseFirst("", /*replays=*/true, *storage), "step-4");
  EXPECT_EQ(ChooseFirst("named", /*replays=*/true, *storage), "named");
}

// What is known of requests may be a gigabyte, and is of no use to whoever chooses.
TEST_F(FirstWeightsTest, ChoosingCopiesNoRequest) {
  const auto allocations = [](int requests) {
    const TempFolder folder;
    JournalWithRequests(folder.path(), requests);
    const std::unique_ptr<Storage> storage = std::move(Storage::Open(folder.path(), /*requests_kept=*/1000)).value();
    EXPECT_EQ(storage->state().requests_size(), requests);
    return testing::AllocationsOf([&] {
             EXPECT_EQ(ChooseFirst("", /*replays=*/true, *storage), "");
             EXPECT_THAT(CheckKeptRequests(/*replays=*/true, *storage), IsOk());
           })
        .bytes;
  };
  EXPECT_EQ(allocations(1), allocations(1000));
}

class KeptOfAnotherVersionTest : public FirstWeightsTest {
 protected:
  // Step 9 is in the weights of checkpoint step-9, step 10 in none; the third request has none yet.
  void SetUp() override {
    std::filesystem::create_directory(folder_ / "spool");
    internal::v1::JournalRow row;
    internal::v1::JournalState& state = *row.mutable_snapshot();
    state.set_epoch(1);
    state.set_lineage("lineage-1");
    state.set_step(10);
    state.set_weight_version(10);
    internal::v1::KnownCheckpoint& known = *state.add_checkpoints();
    known.set_name("step-9");
    known.set_lineage("lineage-1");
    known.set_step(9);
    known.set_weight_version(9);
    for (const uint64_t step : {uint64_t{9}, uint64_t{10}}) {
      internal::v1::KeptRequest& kept = *state.add_kept();
      kept.set_request_id("r-" + std::to_string(step));
      kept.mutable_spool()->set_name(SpoolName(step));
      kept.add_steps()->set_applied(true);
      internal::v1::StepCommitted& decision = *kept.mutable_steps(0)->mutable_decision();
      decision.set_outcome(v1::StepResult::APPLIED);
      decision.set_step(step);
      SetBytes(Spooled(step), kOfThisVersion);
    }
    internal::v1::KeptRequest& open = *state.add_kept();
    open.set_request_id("r-11");
    open.set_open(true);
    open.mutable_spool()->set_name(SpoolName(11));
    SetBytes(Spooled(11), kOfThisVersion);
    internal::v1::KnownRequest& known_open = *state.add_requests();
    known_open.set_request_id("r-11");
    known_open.set_lineage("lineage-1");
    known_open.mutable_status()->set_state(v1::ACCEPTED);
    absl::StatusOr<Journal> journal = Journal::Open(folder_.path());
    ASSERT_THAT(journal, IsOk());
    ASSERT_THAT(journal->Append(1, row.SerializeAsString(), /*settles=*/true), IsOk());
    DrawnSave save = MakeSave("step-9", 1, 9);
    save.manifest.set_journal_row(1);
    ASSERT_THAT(CommitSave(*CheckpointStore::Open(folder_.path()), folder_.path(), save, ""), IsOk());
  }
  static std::string SpoolName(uint64_t step) { return "1-" + std::to_string(step); }
  std::string Spooled(uint64_t step) const { return folder_ / ("spool/" + SpoolName(step)); }

  const std::string kOfThisVersion = std::string(kSpoolMagic) + "and so on", kOfAnother = "STEMMA SPOOL 1\r\nand so on";
};

TEST_F(KeptOfAnotherVersionTest, IsRefusedWhereItsStepsWouldBeComputed) {
  SetBytes(Spooled(9), kOfAnother);
  EXPECT_THAT(CheckKeptRequests(/*replays=*/true, *Open()), IsOk()) << "its step is in the checkpoint";
  for (const uint64_t step : {uint64_t{10}, uint64_t{11}}) {
    SetBytes(Spooled(step), kOfAnother);
    EXPECT_THAT(CheckKeptRequests(/*replays=*/true, *Open()),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr("spool/" + SpoolName(step) + " of"), HasSubstr("from a backup"),
                               HasSubstr("--durability rewind"))))
        << "the other request is of this version";
    EXPECT_THAT(CheckKeptRequests(/*replays=*/false, *Open()), IsOk()) << "nothing is computed again";
    SetBytes(Spooled(step), kOfThisVersion);
  }
  SetBytes(Spooled(10), kOfAnother);
  SetBytes(Spooled(11), kOfAnother);
  EXPECT_THAT(CheckKeptRequests(/*replays=*/true, *Open()),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("start the version that kept it")));
}

// Only a server that has started verifies a copy that was put back.
TEST_F(KeptOfAnotherVersionTest, IsNotRefusedWhereADamagedCheckpointHasItsSteps) {
  SetBytes(Spooled(9), kOfAnother);
  {
    internal::v1::JournalRow row;
    row.mutable_checkpoint_changed()->set_name("step-9");
    row.mutable_checkpoint_changed()->set_damage("a byte");
    absl::StatusOr<Journal> journal = Journal::Open(folder_.path());
    ASSERT_THAT(journal, IsOk());
    ASSERT_THAT(journal->Append(2, row.SerializeAsString(), /*settles=*/true), IsOk());
  }
  EXPECT_THAT(CheckKeptRequests(/*replays=*/true, *Open()), IsOk());
}

}  // namespace
}  // namespace stemma::server
