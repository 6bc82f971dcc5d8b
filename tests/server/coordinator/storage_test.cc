// What the server's start makes of rows whose chain is whole: it goes on from them, or says which of them makes no
// sense.
#include "server/coordinator/storage.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "common/base/mesh.h"
#include "gtest/gtest.h"
#include "tests/server/coordinator/spool_unlinks.h"
#include "tests/server/store/checkpoint_files.h"
#include "tests/server/store/drawn_requests.h"
#include "tests/testing/status_matchers.h"

namespace stemma::server {
namespace {

using internal::v1::JournalRow;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;
using testing::TempFolder;

constexpr uint64_t kRequestsKept = 4;

JournalRow Started(uint64_t epoch) {
  JournalRow row;
  row.mutable_started()->set_epoch(epoch);
  return row;
}

absl::StatusOr<std::unique_ptr<Storage>> OpenWith(const std::string& folder, const std::vector<std::string>& bodies) {
  {
    absl::StatusOr<Journal> journal = Journal::Open(folder);
    EXPECT_THAT(journal, IsOk());
    for (const std::string& body : bodies) {
      EXPECT_THAT(journal->Append(journal->last_n() + 1, body, /*settles=*/true), IsOk());
    }
  }
  return Storage::Open(folder, kRequestsKept);
}

TEST(StorageTest, RowsAreFolded) {
  const TempFolder folder;
  const auto storage = OpenWith(folder.path(), {Started(1).SerializeAsString(), Started(2).SerializeAsString()});
  ASSERT_THAT(storage, IsOk());
  EXPECT_EQ((*storage)->state().epoch(), 2u);
  EXPECT_EQ((*storage)->last_row(), 2u);
}

// A start without them would give their steps up for good, so that mounting the folder later came too late.
TEST(StorageTest, AJournalWhoseCheckpointsAreAllMissingIsRefused) {
  JournalRow row;
  internal::v1::JournalState& state = *row.mutable_snapshot();
  state.set_epoch(1);
  state.set_lineage("L-1");
  state.set_step(5);
  state.set_weight_version(6);
  for (const char* name : {"first", "second"}) {
    internal::v1::KnownCheckpoint& known = *state.add_checkpoints();
    known.set_name(name);
    known.set_lineage("L-1");
    known.set_step(5);
    known.set_weight_version(6);
  }
  const TempFolder folder;
  EXPECT_THAT(OpenWith(folder.path(), {row.SerializeAsString()}).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("none of the checkpoints")));
  std::filesystem::create_directory(folder.path() + "/checkpoints/none");
  EXPECT_THAT(Storage::Open(folder.path(), kRequestsKept).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("as second: the 5 steps")));
  ASSERT_THAT(CommitSave(*CheckpointStore::Open(folder.path()), folder.path(), MakeSave("first", 1, 5), ""), IsOk());
  const auto storage = Storage::Open(folder.path(), kRequestsKept);
  ASSERT_THAT(storage, IsOk()) << "one of them is enough";
  EXPECT_EQ((*storage)->found().size(), 1u);
  EXPECT_THAT((*storage)->other_folders(), ::testing::ElementsAre("none"));
}

TEST(StorageTest, RowsThatMakeNoSenseAreRefused) {
  JournalRow nameless;
  nameless.mutable_snapshot()->add_requests();
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{Started(1).SerializeAsString(), "\xff\xff"}, "row 2"},
      {{Started(2).SerializeAsString(), Started(1).SerializeAsString()}, "epoch 1 follows 2"},
      {{Started(UINT64_MAX).SerializeAsString()}, "makes no sense"},
      {{nameless.SerializeAsString()}, "makes no sense"},
  };
  for (const auto& [bodies, what] : cases) {
    const TempFolder folder;
    const absl::Status status = OpenWith(folder.path(), bodies).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << what << ": " << status;
    EXPECT_TRUE(absl::StrContains(status.message(), what)) << what << ": " << status;
  }
  const TempFolder folder;
  EXPECT_THAT(OpenWith(folder.path(), {Started(2).SerializeAsString(), Started(1).SerializeAsString()}).status(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("row 2 of the journal in " + folder.path())));
}

// It is whole: the version that wrote it goes on from it, and a supervisor need not take it for damage.
TEST(StorageTest, ARowOfANewerVersionIsNoDamage) {
  const TempFolder folder;
  constexpr char kFieldOfLater[] = "\xfa\x3f\x00";  // field 1023, empty
  EXPECT_THAT(
      OpenWith(folder.path(), {Started(1).SerializeAsString(), std::string(kFieldOfLater, 3)}).status(),
      StatusIs(absl::StatusCode::kFailedPrecondition, AllOf(HasSubstr("row 2 of the journal in " + folder.path()),
                                                            HasSubstr("start the version that wrote it"))));
}

// What it says more would be dropped in silence, and what goes on from it would be something else.
TEST(StorageTest, AFieldOrAWordOfANewerVersionInARowIsNotPassedOver) {
  JournalRow row;
  v1::StepResult& result = *row.mutable_applied()->mutable_result();
  for (const bool word : {false, true}) {
    if (word) {
      result.GetReflection()->MutableUnknownFields(&result)->Clear();
      result.set_outcome(static_cast<v1::StepResult::Outcome>(99));
    } else {
      result.GetReflection()->MutableUnknownFields(&result)->AddVarint(1023, 1);
    }
    const TempFolder folder;
    EXPECT_THAT(
        OpenWith(folder.path(), {Started(1).SerializeAsString(), row.SerializeAsString()}).status(),
        StatusIs(absl::StatusCode::kFailedPrecondition,
                 AllOf(HasSubstr("row 2 of the journal in " + folder.path()),
                       HasSubstr(word ? "value 99 of outcome of applied.result" : "field 1023 of applied.result"),
                       HasSubstr("start the version that wrote it"))));
  }
}

// A journal that is an old copy names none of the newest requests; they are there when the newest comes back.
TEST(StorageTest, ARefusedJournalLeavesTheRequestsThatItDoesNotName) {
  const TempFolder folder;
  JournalRow begun;
  begun.mutable_lineage_begun()->set_name("L");
  ASSERT_THAT(OpenWith(folder.path(), {Started(1).SerializeAsString(), begun.SerializeAsString()}), IsOk());
  const std::string kept = folder / "spool/1-1";
  {
    const auto spool = Spool::Open(folder.path());
    ASSERT_THAT(spool, IsOk());
    ASSERT_THAT(spool->Write("1-1", DrawnRequest(1, 1, 10), DrawnPlan(1, 1), MakeMesh({.dp = 1})), IsOk());
    const auto store = CheckpointStore::Open(folder.path());
    ASSERT_THAT(store, IsOk());
    DrawnSave save = MakeSave("ahead", 1, 1);
    save.manifest.set_lineage("L");
    save.manifest.set_journal_row(3);
    ASSERT_THAT(CommitSave(*store, folder.path(), save, ""), IsOk());
  }
  const absl::Status status = Storage::Open(folder.path(), kRequestsKept).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "old copy")) << status;
  EXPECT_TRUE(std::filesystem::exists(kept));
  std::filesystem::remove_all(folder / "checkpoints/ahead");
  ASSERT_THAT(Storage::Open(folder.path(), kRequestsKept), IsOk());
  EXPECT_FALSE(std::filesystem::exists(kept)) << "control: no row of a journal that is taken names it";
}

// A request of one step, whose loss is the mean over two samples.
TrainingRequest RequestOfTwoSamples() {
  TrainingRequest request;
  request.update.mutable_loss()->set_loss_mode("vanilla");
  request.update.mutable_loss()->set_loss_agg_mode("seq-mean-token-sum");
  v1::PromptGroup& group = request.groups.emplace_back();
  for (const float advantage : {1.f, -1.f}) {
    v1::Rollout& rollout = *group.add_rollouts();
    rollout.set_response_tokens(std::string(8, '\1'));
    rollout.set_advantage(advantage);
  }
  return request;
}

// A later version may count otherwise; what a step was decided with is computed again with the same numbers.
TEST(StorageTest, StepsOfAKeptRequestHaveTheNumbersOfTheirDecision) {
  const TempFolder folder;
  const auto storage = OpenWith(folder.path(), {Started(1).SerializeAsString()});
  ASSERT_THAT(storage, IsOk());
  const TrainingRequest request = RequestOfTwoSamples();
  RequestPlan plan;
  plan.plan.add_steps()->add_groups(0);
  ASSERT_THAT(AddStepNumbers(request, /*stop=*/nullptr, plan), IsOk());
  ASSERT_EQ(plan.steps[0].denominator, 2) << "control: what this version counts";
  plan.steps[0].denominator = 5;
  plan.steps[0].rollout_weights = {0.5, 0.25};
  plan.steps[0].loss_tokens = 3;
  const auto file = (*storage)->Keep("1-1", request, plan, MakeMesh({.dp = 1}));
  ASSERT_THAT(file, IsOk());
  const absl::StatusOr<LoadedRequest> loaded = (*storage)->Load(*file);
  ASSERT_THAT(loaded, IsOk());
  ASSERT_EQ(loaded->plan.steps.size(), 1u);
  const StepNumbers& numbers = loaded->plan.steps[0];
  EXPECT_EQ(numbers.denominator, 5);
  EXPECT_THAT(numbers.rollout_weights, ::testing::ElementsAre(0.5, 0.25));
  EXPECT_EQ(numbers.loss_tokens, 3);
  EXPECT_EQ(numbers.total_tokens, 4u) << "what is counted of any request";
}

void SpoolOne(const std::string& folder, const std::string& name) {
  const auto spool = Spool::Open(folder);
  ASSERT_THAT(spool, IsOk());
  ASSERT_THAT(spool->Write(name, DrawnRequest(1, 1, 10), DrawnPlan(1, 1), MakeMesh({.dp = 1})), IsOk());
}

// Its rows are gone, and with them the only names of what could restore them.
TEST(StorageTest, AJournalOfFewerStartsThanTheSpoolIsRefused) {
  const TempFolder folder;
  ASSERT_THAT(OpenWith(folder.path(), {Started(1).SerializeAsString()}), IsOk());
  SpoolOne(folder.path(), "1-9");
  SpoolOne(folder.path(), "2-1");
  for (int starts = 0; starts < 2; ++starts) {  // another start says the same
    EXPECT_THAT(Storage::Open(folder.path(), kRequestsKept).status(),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("spool/2-1 is of the server's start 2")));
  }
  EXPECT_TRUE(std::filesystem::exists(folder / "spool/1-9") && std::filesystem::exists(folder / "spool/2-1"));
  ASSERT_THAT(OpenWith(folder.path(), {Started(2).SerializeAsString()}), IsOk()) << "the newest is back";
  EXPECT_TRUE(std::filesystem::is_empty(folder / "spool")) << "control: no row names them";
}

// As of a file that somebody made immutable: no request is lost by it.
TEST(StorageTest, AFileThatNobodyNeedsAndThatCannotBeRemovedStays) {
  const TempFolder folder;
  for (const char* name : {"1-1", "1-2"}) SpoolOne(folder.path(), name);
  {
    int removed = 0;
    const testing::SpoolUnlinks first_is_refused([&] { return removed++ == 0 ? EPERM : 0; });
    EXPECT_THAT(OpenWith(folder.path(), {Started(1).SerializeAsString()}), IsOk());
  }
  EXPECT_TRUE(std::filesystem::exists(folder / "spool/1-1"));
  EXPECT_FALSE(std::filesystem::exists(folder / "spool/1-2")) << "what can be removed is";
  EXPECT_THAT(Storage::Open(folder.path(), kRequestsKept), IsOk());
  EXPECT_TRUE(std::filesystem::is_empty(folder / "spool"));
}

TEST(StorageTest, WhatAWriterLeftUnfinishedAndThatCannotBeRemovedStays) {
  const TempFolder folder;
  ASSERT_THAT(OpenWith(folder.path(), {Started(1).SerializeAsString()}), IsOk());
  const std::string request = folder / "spool/.1-9.AbCdEf";
  SetBytes(request, "half");
  {
    const testing::SpoolUnlinks refused([] { return EPERM; });
    EXPECT_THAT(Storage::Open(folder.path(), kRequestsKept), IsOk());
  }
  EXPECT_TRUE(std::filesystem::exists(request));
  EXPECT_THAT(Storage::Open(folder.path(), kRequestsKept), IsOk());
  EXPECT_FALSE(std::filesystem::exists(request));
}

TEST(StorageTest, WhereAnotherDirectoryIsInItsPlaceItSaysSo) {
  const TempFolder folder;
  std::filesystem::create_directory(folder / "data");
  const absl::StatusOr<std::unique_ptr<Storage>> storage = OpenWith(folder / "data", {Started(1).SerializeAsString()});
  ASSERT_THAT(storage, IsOk());
  EXPECT_THAT((*storage)->CheckPlace(), IsOk());
  std::filesystem::rename(folder / "data", folder / "moved");
  std::filesystem::create_directory(folder / "data");
  EXPECT_THAT((*storage)->CheckPlace(), StatusIs(absl::StatusCode::kInternal, HasSubstr("data is another folder")));
}

TEST(StorageTest, AnEmptyJournalBesideASpoolIsRefused) {
  const TempFolder folder;
  SpoolOne(folder.path(), "1-1");
  EXPECT_THAT(OpenWith(folder.path(), {}).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("missing or older than the spool")));
  EXPECT_TRUE(std::filesystem::exists(folder / "spool/1-1"));
}

// The spool of a server with `durability: rewind` is empty, as is one whose steps are all in its checkpoint: the
// journal is missed all the same.
TEST(StorageTest, AMissingJournalIsRefusedWhereAServerWas) {
  const TempFolder folder, elsewhere;
  ASSERT_THAT(OpenWith(folder.path(), {Started(1).SerializeAsString()}), IsOk());
  ASSERT_THAT(CommitSave(*CheckpointStore::Open(folder.path()), folder.path(), MakeSave("kept", 1, 5), ""), IsOk());
  std::filesystem::rename(folder / "journal", elsewhere / "journal");
  EXPECT_THAT(Storage::Open(folder.path(), kRequestsKept).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("no journal/journal.db")));
  EXPECT_FALSE(std::filesystem::exists(folder / "journal")) << "one that is put back is not put into it";
  std::filesystem::rename(elsewhere / "journal", folder / "journal");
  EXPECT_THAT(Storage::Open(folder.path(), kRequestsKept), IsOk());
}

// A disk that is mounted there has an empty folder before the first start, and one of its own system's.
TEST(StorageTest, ASpoolInWhichNothingWasKeptIsNone) {
  const TempFolder folder;
  std::filesystem::create_directories(folder / "spool/lost+found");
  EXPECT_THAT(Storage::Open(folder.path(), kRequestsKept).status(), IsOk());
}

TEST(StorageTest, ASpoolThatCannotBeReadMayHoldRequests) {
  const TempFolder folder;
  std::ofstream(folder / "spool") << "not a folder";
  EXPECT_THAT(Storage::Open(folder.path(), kRequestsKept).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("no journal/journal.db")));
}

TEST(StorageTest, CheckpointsAloneBeginANewJournal) {
  const TempFolder folder;
  ASSERT_THAT(CommitSave(*CheckpointStore::Open(folder.path()), folder.path(), MakeSave("moved", 1, 5), ""), IsOk());
  const auto storage = Storage::Open(folder.path(), kRequestsKept);
  ASSERT_THAT(storage, IsOk());
  EXPECT_EQ((*storage)->found().size(), 1u);
}

const std::vector<std::string> kUnfinished = {"checkpoints/.tmp-a", "exports/.tmp-b-abcdef",
                                              ".calibration.json.aB3xYz"};

void LeaveUnfinished(const TempFolder& folder) {
  for (const std::string& name : kUnfinished) std::filesystem::create_directories(folder / name);
}

int NumUnfinished(const TempFolder& folder) {
  return static_cast<int>(std::count_if(kUnfinished.begin(), kUnfinished.end(), [&](const std::string& name) {
    return std::filesystem::exists(folder / name);
  }));
}

TEST(StorageTest, NothingIsRemovedWhereNoServerWas) {
  const TempFolder folder;
  LeaveUnfinished(folder);
  ASSERT_THAT(Storage::Open(folder.path(), kRequestsKept), IsOk());
  EXPECT_EQ(NumUnfinished(folder), 3);
  ASSERT_THAT(Storage::Open(folder.path(), kRequestsKept), IsOk());
  EXPECT_EQ(NumUnfinished(folder), 0) << "control: the directory is a server's by now";
}

TEST(StorageTest, NothingIsRemovedUnderAnotherServer) {
  const TempFolder folder;
  const absl::StatusOr<Journal> others = Journal::Open(folder.path());
  ASSERT_THAT(others, IsOk());
  LeaveUnfinished(folder);
  EXPECT_THAT(Storage::Open(folder.path(), kRequestsKept).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("another process uses it")));
  EXPECT_EQ(NumUnfinished(folder), 3);
}

}  // namespace
}  // namespace stemma::server
