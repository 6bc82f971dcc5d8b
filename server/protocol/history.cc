#include "server/protocol/history.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/free_bytes.h"
#include "glog/logging.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"

namespace stemma::server {
namespace {

using internal::v1::JournalRow;
using internal::v1::JournalState;
using internal::v1::KeptRequest;
using internal::v1::KeptStep;

constexpr uint64_t kSnapshotFrameBytes = 16;  // at most: of the row around the state

// No row is empty: what protobuf cannot write, as of 2 GiB, would stand for all rows before it and hold nothing.
std::string BodyOf(const JournalRow& row) {
  std::string body = row.SerializeAsString();
  CHECK(!body.empty()) << "a row of " << row.ByteSizeLong() << " bytes cannot be written";
  return body;
}

// Returns the body of a row that holds the state, as BodyOf would for a copy of it. `state_bytes` is what its
// ByteSizeLong said last: the state may be large, and all decisions wait meanwhile, so it is neither copied nor
// measured again.
std::string SnapshotBody(const JournalState& state, uint64_t state_bytes) {
  using google::protobuf::internal::WireFormatLite;
  using google::protobuf::io::CodedOutputStream;
  const uint32_t tag =
      WireFormatLite::MakeTag(JournalRow::kSnapshotFieldNumber, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
  const auto bytes = static_cast<uint32_t>(state_bytes);
  CHECK_LE(state_bytes, static_cast<uint64_t>(std::numeric_limits<int32_t>::max())) << "cannot be written";
  std::string body(CodedOutputStream::VarintSize32(tag) + CodedOutputStream::VarintSize32(bytes) + state_bytes, '\0');
  auto* at = reinterpret_cast<uint8_t*>(body.data());
  at = CodedOutputStream::WriteTagToArray(tag, at);
  at = CodedOutputStream::WriteVarint32ToArray(bytes, at);
  at = state.SerializeWithCachedSizesToArray(at);
  CHECK(at == reinterpret_cast<uint8_t*>(body.data()) + body.size());
  return body;
}

bool IsBeyond(const KeptRequest& kept, uint64_t step) {
  return std::any_of(kept.steps().begin(), kept.steps().end(), [&](const KeptStep& s) {
    return s.decision().outcome() == v1::StepResult::APPLIED && s.decision().step() > step;
  });
}

}  // namespace

History::History(const HistoryOptions& options, Outbox* out, internal::v1::JournalState state)
    : options_(options),
      out_(out),
      state_(std::move(state)),
      last_row_(options_.last_row),
      bytes_since_snapshot_(options_.journal_bytes.rows),
      snapshot_bytes_(options_.journal_bytes.snapshot) {}

const KeptStep* History::FindDecision(const std::string& request_id, uint32_t k) const {
  const KeptRequest* kept = FindKept(state_, request_id);
  return kept == nullptr ? nullptr : FindStep(*kept, k);
}

const KeptRequest* History::FindBehind(uint64_t step) const {
  if (!options_.replays) return nullptr;
  const auto& kept = state_.kept();
  const auto it = std::find_if(kept.begin(), kept.end(), [&](const KeptRequest& k) { return IsBeyond(k, step); });
  return it == kept.end() || it->open() ? nullptr : &*it;
}

void History::Start(uint64_t epoch) {
  JournalRow row;
  row.mutable_started()->set_epoch(epoch);
  Add(row);
}

void History::BeginLineage(internal::v1::LineageBegun begun) {
  JournalRow row;
  *row.mutable_lineage_begun() = std::move(begun);
  Add(row);
}

void History::LoadModel(internal::v1::ModelLoaded loaded) {
  JournalRow row;
  *row.mutable_model_loaded() = std::move(loaded);
  Add(row);
}

void History::Accept(internal::v1::RequestAccepted accepted) {
  JournalRow row;
  *row.mutable_accepted() = std::move(accepted);
  Add(row);
}

void History::Commit(internal::v1::StepCommitted committed) {
  JournalRow row;
  *row.mutable_committed() = std::move(committed);
  Add(row);
}

void History::Apply(internal::v1::StepApplied applied) {
  JournalRow row;
  *row.mutable_applied() = std::move(applied);
  Add(row, /*settles=*/true);
  AddSnapshotWhenDue();
}

void History::Skip(internal::v1::StepsSkipped skipped) {
  JournalRow row;
  *row.mutable_skipped() = std::move(skipped);
  Add(row, /*settles=*/true);
  AddSnapshotWhenDue();
}

void History::Undo(const std::string& request_id, uint32_t k) {
  JournalRow row;
  row.mutable_undone()->set_request_id(request_id);
  row.mutable_undone()->set_k(k);
  Add(row);
}

void History::Finish(internal::v1::RequestFinished finished) {
  JournalRow row;
  *row.mutable_finished() = std::move(finished);
  Add(row);
  AddSnapshotWhenDue();
}

void History::SaveCheckpoint(internal::v1::KnownCheckpoint checkpoint) {
  JournalRow row;
  *row.mutable_checkpoint_saved()->mutable_checkpoint() = std::move(checkpoint);
  Add(row, /*settles=*/true);
}

void History::TakeCheckpoint(internal::v1::KnownCheckpoint checkpoint) {
  JournalRow row;
  *row.mutable_checkpoint_saved()->mutable_checkpoint() = std::move(checkpoint);
  Add(row, /*settles=*/true, /*counts=*/false);
}

void History::PinCheckpoint(const std::string& name, bool pinned) {
  JournalRow row;
  row.mutable_checkpoint_changed()->set_name(name);
  row.mutable_checkpoint_changed()->set_pinned(pinned);
  Add(row);
  AddSnapshotWhenDue();
}

void History::JudgeCheckpoint(const std::string& name, const std::string& damage) {
  JournalRow row;
  row.mutable_checkpoint_changed()->set_name(name);
  row.mutable_checkpoint_changed()->set_damage(damage);
  Add(row);
  AddSnapshotWhenDue();
}

void History::NoteLoaded(const std::string& checkpoint, const std::string& dtype, const std::string& weights_digest) {
  JournalRow row;
  row.mutable_checkpoint_changed()->set_name(checkpoint);
  row.mutable_checkpoint_changed()->set_loaded_dtype(dtype);
  row.mutable_checkpoint_changed()->set_loaded_digest(weights_digest);
  Add(row);
  AddSnapshotWhenDue();
}

void History::DropCheckpoint(const std::string& name) {
  JournalRow row;
  row.mutable_checkpoint_dropped()->set_name(name);
  Add(row);
}

void History::Add(const JournalRow& row, bool settles, bool counts) {
  if (counts) totals_.Count(row, state_);
  std::vector<std::string> dropped;
  const absl::Status folded = FoldRow(row, options_.requests_kept, state_, known_requests_, dropped);
  CHECK(folded.ok()) << folded.message();
  std::string body = BodyOf(row);
  bytes_since_snapshot_ += body.size();
  out_->Add(JournalAction{.n = ++last_row_, .body = std::move(body), .kind = row.row_case(), .settles = settles});
  for (std::string& name : dropped) out_->Add(RemoveSpoolAction{std::move(name)});
}

// A snapshot costs its bytes once for at least as many bytes of rows, so the journal stays within twice of what is
// known. One that is too large, or finds no room, is measured again after as many. It is written twice before the rows
// that it replaces give up theirs: to the write-ahead log, and from there to the database.
void History::AddSnapshotWhenDue() {
  if (bytes_since_snapshot_ < std::max(options_.snapshot_after_bytes, snapshot_bytes_)) return;
  bytes_since_snapshot_ = 0;
  const uint64_t state_bytes = state_.ByteSizeLong();
  snapshot_bytes_ = state_bytes + kSnapshotFrameBytes;
  if (snapshot_bytes_ > options_.snapshot_bytes_max) return WarnOfSize();
  const uint64_t needed_bytes = 2 * snapshot_bytes_ + kReservedForRowsBytes;
  const std::optional<uint64_t> free_bytes = out_->FreeBytes();
  if (free_bytes && *free_bytes < needed_bytes) return WarnOfRoom(*free_bytes, needed_bytes);
  warned_of_room_ = false;
  std::string body = SnapshotBody(state_, state_bytes);
  out_->Add(JournalAction{
      .n = ++last_row_, .body = std::move(body), .kind = JournalRow::kSnapshot, .settles = true, .replaces = true});
}

void History::WarnOfSize() {
  if (std::exchange(warned_of_size_, true)) return;
  LOG(WARNING) << "the journal is not compacted any more, and grows: what is known of requests has " << snapshot_bytes_
               << " bytes, a row at most " << options_.snapshot_bytes_max
               << "; start the server with a lower limits.requests_kept, now " << options_.requests_kept;
}

void History::WarnOfRoom(uint64_t free_bytes, uint64_t needed_bytes) {
  if (std::exchange(warned_of_room_, true)) return;
  LOG(WARNING) << "the journal is not compacted, and grows until its disk has " << needed_bytes << " bytes left, now "
               << free_bytes << ": make room there";
}

}  // namespace stemma::server
