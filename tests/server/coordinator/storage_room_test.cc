// A disk that fills up beside the journal: what is refused for it, what is put off, and that every row is written.
#include <cerrno>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "common/base/error.h"
#include "common/base/free_bytes.h"
#include "common/base/mesh.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "server/coordinator/coordinator.h"
#include "server/coordinator/planner_threads.h"
#include "server/coordinator/storage.h"
#include "server/protocol/history.h"
#include "tests/server/coordinator/echo_worker.h"
#include "tests/server/coordinator/spool_unlinks.h"
#include "tests/server/store/drawn_requests.h"
#include "tests/testing/disk_left.h"
#include "tests/testing/status_matchers.h"

namespace stemma::server {
namespace {

using google::protobuf::util::MessageDifferencer;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::SetFreeBytes;
using testing::StatusIs;

constexpr uint64_t kKeptOnALowDisk = 4;
constexpr int64_t kReserved = kReservedForRowsBytes;

class StorageRoomTest : public ::testing::Test {
 protected:
  // Ends the server before, and begins the next.
  void Restart() {
    storage_.reset();
    absl::StatusOr<std::unique_ptr<Storage>> opened = Storage::Open(folder_.path(), kKeptOnALowDisk);
    ASSERT_THAT(opened, IsOk());
    storage_ = *std::move(opened);
  }
  void SetUp() override { Restart(); }

  // Lets a server with a worker do that, and ends it.
  void Serve(const std::string& prefix, const std::function<void(Coordinator&, EchoWorker&)>& use) {
    CoordinatorOptions options;
    options.epoch = storage_->state().epoch() + 1;
    options.journal_bytes = storage_->journal_bytes();
    options.journal = storage_->TakeState();
    options.journal_rows = storage_->last_row();
    options.lineage_prefix = prefix;
    options.config.set_durability(durability_);
    options.config.mutable_limits()->set_requests_in_flight(10);
    options.config.mutable_limits()->set_request_bytes_in_flight(1 << 20);
    options.config.mutable_limits()->set_requests_kept(kKeptOnALowDisk);
    Flag ready;
    Coordinator coordinator(std::move(options), OneStepPlan, std::move(storage_), RealClock(), [&](bool is_ready) {
      if (is_ready && !ready.is_set()) ready.Set();
    });
    const auto worker = std::make_shared<EchoWorker>(coordinator);
    worker->Connect(worker);
    ASSERT_TRUE(ready.AwaitWithin(kPatience));
    use(coordinator, *worker);
  }

  // Lets a server make requests, each of which writes a megabyte into the journal, and ends it.
  void ServeLargeRows(const std::string& prefix, int count = 10) {
    Serve(prefix, [&](Coordinator& coordinator, EchoWorker&) {
      for (int i = 0; i < count; ++i) {
        auto request = std::make_shared<TrainingRequest>(*Request(prefix + std::to_string(i)));
        request->digest = std::string(1 << 20, 'd');
        const auto call = Submit(coordinator, request);
        ASSERT_TRUE(IsTaken(call->Get())) << std::get<absl::Status>(call->Get());
      }
    });
  }

  static std::shared_ptr<Waiting> Submit(Coordinator& coordinator, std::shared_ptr<const TrainingRequest> request) {
    auto call = std::make_shared<Waiting>();
    coordinator.Call(call, [&](CallId id) { return SubmitEvent{id, std::move(request)}; });
    return call;
  }
  static bool IsTaken(const Reply& reply) { return std::holds_alternative<v1::RequestStatus>(reply); }

  uint64_t FirstRow() const { return Journal::Open(folder_.path())->TakeRows().at(0).n; }

  const testing::FreeBytesGuard guard_;
  const testing::TempFolder folder_;
  v1::Durability durability_ = v1::REWIND;  // of the next server
  std::unique_ptr<Storage> storage_;
};

void EndRequest(const std::string& id, History& history) {
  internal::v1::RequestAccepted accepted;
  accepted.set_request_id(id);
  accepted.set_digest(std::string(64, '0'));
  history.Accept(std::move(accepted));
  internal::v1::RequestFinished finished;
  finished.set_request_id(id);
  finished.set_state(v1::DONE);
  history.Finish(std::move(finished));
}

// Writes the rows that were decided on, and returns how many of them are snapshots.
int WriteRows(Outbox& out, Storage& storage) {
  int snapshots = 0;
  for (const Action& action : out.Take().actions) {
    const auto* row = std::get_if<JournalAction>(&action);
    if (row == nullptr) continue;
    storage.Append(*row);
    snapshots += row->replaces ? 1 : 0;
  }
  return snapshots;
}

TEST_F(StorageRoomTest, OnALowDiskRowsAreWrittenAndTheJournalIsCompactedOnceThereIsRoom) {
  Outbox out;
  History history({.requests_kept = kKeptOnALowDisk, .snapshot_after_bytes = 2000}, &out);
  history.Start(1);
  internal::v1::LineageBegun begun;
  begun.set_name("L");
  begun.set_weight_version(1);
  history.BeginLineage(std::move(begun));
  WriteRows(out, *storage_);
  const auto snapshots_of = [&](const std::string& prefix) {
    int snapshots = 0;
    for (int i = 0; i < 100; ++i) {
      out.Begin(absl::UnixEpoch(), [this] { return storage_->FreeBytes(); });
      EndRequest(prefix + std::to_string(i), history);
      snapshots += WriteRows(out, *storage_);
    }
    return snapshots;
  };
  SetFreeBytes(kReserved + 1);
  EXPECT_EQ(snapshots_of("low"), 0);
  Restart();
  EXPECT_TRUE(MessageDifferencer::Equals(storage_->state(), history.state()));
  SetFreeBytes(2 * kReserved);
  EXPECT_GT(snapshots_of("enough"), 0);
  Restart();
  EXPECT_TRUE(MessageDifferencer::Equals(storage_->state(), history.state()));
}

TEST_F(StorageRoomTest, TheServerAsksItsDiskBeforeItCompacts) {
  SetFreeBytes(kReserved + 1);
  ASSERT_NO_FATAL_FAILURE(ServeLargeRows("low"));
  EXPECT_EQ(FirstRow(), 1u);
  Restart();
  SetFreeBytes(int64_t{1} << 30);
  ASSERT_NO_FATAL_FAILURE(ServeLargeRows("enough"));
  EXPECT_GT(FirstRow(), 1u) << "a snapshot stands for the rows before it";
}

// A server that is started again every night, and does little, compacts its journal all the same.
TEST_F(StorageRoomTest, RowsOfEarlierStartsCountUntilTheyAreCompacted) {
  SetFreeBytes(int64_t{1} << 30);
  for (int start = 0; start < 4 && !HasFatalFailure(); ++start) {
    ServeLargeRows("start" + std::to_string(start), 3);
    if (start == 1) {
      EXPECT_EQ(FirstRow(), 1u) << "6 MB of rows are less than 8";
    }
    Restart();
  }
  storage_.reset();
  EXPECT_GT(FirstRow(), 1u) << "12 MB are more";
}

// What hangs in its place is the thread of the one plan that asks it.
TEST_F(StorageRoomTest, ADiskThatDoesNotSayWhatItHasLeftHoldsUpOnlyWhatAsksIt) {
  Serve("hung", [](Coordinator& coordinator, EchoWorker& worker) {
    std::shared_ptr<Waiting> update;
    {
      const testing::DiskAnswers hung(testing::DiskAnswer::kNever);
      update = Submit(coordinator, Request("a"));
      worker.Say();
      const auto info = std::make_shared<Waiting>();
      coordinator.Call(info, [](CallId id) { return GetServerInfoEvent{id}; });
      EXPECT_TRUE(std::holds_alternative<v1::ServerInfo>(info->Get()));
      EXPECT_FALSE(update->done());
    }
    EXPECT_TRUE(IsTaken(update->Get()));
  });
}

// Returns once it waits in its turn.
void AwaitAccepted(Coordinator& coordinator, const std::string& id) {
  for (;;) {
    const auto asked = std::make_shared<Waiting>();
    coordinator.Call(asked, [&](CallId call) { return GetRequestEvent{call, id, absl::ZeroDuration()}; });
    if (std::holds_alternative<v1::RequestStatus>(asked->Get())) return;
  }
}

TEST_F(StorageRoomTest, AFileThatTheDiskDoesNotRemoveHoldsUpNobody) {
  durability_ = v1::REPLAY;
  Flag removing, let_go;
  const testing::SpoolUnlinks hung([&] {
    removing.Set();
    CHECK(let_go.AwaitWithin(kPatience)) << "a call is not answered while the disk hangs";
    return 0;
  });
  Serve("unlink", [&](Coordinator& coordinator, EchoWorker& worker) {
    worker.set_silent();
    Submit(coordinator, Request("a"));
    const auto waits = Submit(coordinator, Request("b"));
    AwaitAccepted(coordinator, "b");
    const auto cancelled = std::make_shared<Waiting>(), info = std::make_shared<Waiting>();
    coordinator.Call(cancelled, [](CallId call) { return CancelEvent{call, "b"}; });
    ASSERT_TRUE(removing.AwaitWithin(kPatience));
    cancelled->Get();
    coordinator.Call(info, [](CallId call) { return GetServerInfoEvent{call}; });
    EXPECT_TRUE(std::holds_alternative<v1::ServerInfo>(info->Get()));
    Submit(coordinator, Request("c"));
    AwaitAccepted(coordinator, "c");
    let_go.Set();
    waits->Get();
  });
  EXPECT_FALSE(std::filesystem::exists(folder_ / "spool/1-2"));
  EXPECT_TRUE(std::filesystem::exists(folder_ / "spool/1-1")) << "its request is open";
}

TEST_F(StorageRoomTest, ARefusedUpdateIsTakenOnceRoomWasMade) {
  Serve("full", [](Coordinator& coordinator, EchoWorker&) {
    SetFreeBytes(kReserved - 1);
    const auto refused = Submit(coordinator, Request("a"));
    const auto* status = std::get_if<absl::Status>(&refused->Get());
    ASSERT_NE(status, nullptr);
    EXPECT_TRUE(HasReason(*status, Reason::kDiskFull)) << *status;
    SetFreeBytes(kReserved);
    EXPECT_TRUE(IsTaken(Submit(coordinator, Request("a"))->Get()));
  });
}

TEST_F(StorageRoomTest, ADiskThatDoesNotSayWhatItHasLeftIsNotFull) {
  SetFreeBytes(0);
  EXPECT_TRUE(HasReason(storage_->CheckRoom(), Reason::kDiskFull));
  testing::FailFreeBytes(EIO);
  EXPECT_THAT(storage_->CheckRoom(), IsOk());
  const testing::DiskAnswers none(testing::DiskAnswer::kNoBlocks);
  EXPECT_THAT(storage_->CheckRoom(), IsOk());
}

TEST_F(StorageRoomTest, ALargeSnapshotKeepsRoomForTheNextOne) {
  SetFreeBytes(kReserved);
  EXPECT_THAT(storage_->CheckRoom(), IsOk());
  SetFreeBytes(kReserved - 1);
  EXPECT_TRUE(HasReason(storage_->CheckRoom(), Reason::kDiskFull));
  internal::v1::JournalRow row;
  row.mutable_snapshot()->set_epoch(1);
  row.mutable_snapshot()->add_expired_ids(std::string(20 << 20, 'x'));
  const std::string body = row.SerializeAsString();
  storage_->Append({.n = 1, .body = body, .kind = row.row_case(), .settles = true, .replaces = true});
  const auto twice = static_cast<int64_t>(2 * body.size());
  for (const char* server : {"that wrote it", "that read it"}) {
    SetFreeBytes(twice);
    EXPECT_THAT(storage_->CheckRoom(), IsOk()) << server;
    SetFreeBytes(twice - 1);
    EXPECT_THAT(storage_->CheckRoom(),
                StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr(std::to_string(twice - 1) + " bytes left")))
        << server;
    Restart();
  }
}

TEST_F(StorageRoomTest, ARequestWhoseFileWouldTakeTheRoomOfTheRowsIsRefused) {
  const TrainingRequest request = DrawnRequest(1, 1, 10);
  const RequestPlan plan = DrawnPlan(1, 1);
  const auto bytes = static_cast<int64_t>(request.bytes);
  SetFreeBytes(kReserved + bytes - 1);
  const absl::Status status = storage_->Keep("1-1", request, plan, MakeMesh({.dp = 1})).status();
  EXPECT_TRUE(HasReason(status, Reason::kDiskFull)) << status;
  EXPECT_TRUE(std::filesystem::is_empty(folder_ / "spool"));
  SetFreeBytes(kReserved + bytes);
  EXPECT_THAT(storage_->Keep("1-1", request, plan, MakeMesh({.dp = 1})), IsOk());
}

// Returns what the request is told that the plan is made for.
absl::Status AnswerTo(PlanAction action, Storage& storage) {
  std::promise<absl::Status> answer;
  PlannerThreads planners(OneStepPlan, &storage,
                          [&](Event event) { answer.set_value(std::get<PlannedEvent>(event).plan->status()); });
  planners.Add(std::move(action));
  return answer.get_future().get();
}

// `durability: rewind` keeps no file of a request, and its rows all the same.
TEST_F(StorageRoomTest, AnUpdateThatNoFileKeepsNeedsRoomForItsRows) {
  const auto request = std::make_shared<const TrainingRequest>(DrawnRequest(1, 1, 10));
  const PlanAction accepted = {.id = 1, .request = request, .config = {}, .rates = {}, .writes_rows = true};
  const PlanAction made_again = {.id = 2, .request = request, .config = {}, .rates = {}};
  SetFreeBytes(kReserved - 1);
  const absl::Status status = AnswerTo(accepted, *storage_);
  EXPECT_TRUE(HasReason(status, Reason::kDiskFull)) << status;
  EXPECT_THAT(AnswerTo(made_again, *storage_), IsOk()) << "its rows are written, or it has none";
  SetFreeBytes(kReserved);
  EXPECT_THAT(AnswerTo(accepted, *storage_), IsOk());
}

}  // namespace
}  // namespace stemma::server
