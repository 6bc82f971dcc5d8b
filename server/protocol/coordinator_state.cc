#include "server/protocol/coordinator_state.h"

#include <algorithm>
#include <utility>

#include "server/protocol/answers.h"
#include "server/protocol/checkpoint_rules.h"
#include "server/protocol/spool_names.h"
#include "server/protocol/worker_messages.h"

namespace stemma::server {
namespace {

GangOptions GangOptionsOf(const CoordinatorOptions& options) {
  return {.epoch = options.epoch,
          .worker_version = options.worker_version,
          .data_directory = options.data_directory,
          .config = options.config,
          .model = options.model,
          .lost_after = options.worker_lost_after,
          .stalled_after = options.worker_stalled_after,
          .return_within = options.worker_return_within};
}

HistoryOptions HistoryOptionsOf(const CoordinatorOptions& options) {
  return {.last_row = options.journal_rows,
          .journal_bytes = options.journal_bytes,
          .replays = options.config.durability() == v1::REPLAY,
          .requests_kept = options.config.limits().requests_kept()};
}

}  // namespace

CoordinatorState::CoordinatorState(CoordinatorOptions options)
    : CoordinatorState(options, std::exchange(options.journal, {})) {}

CoordinatorState::CoordinatorState(CoordinatorOptions& options, internal::v1::JournalState journal)
    : options_(std::move(options)),
      history_(HistoryOptionsOf(options_), &out_, std::move(journal)),
      lineage_(options_.lineage_prefix, history_.state()),
      base_(&out_, &history_),
      gang_(GangOptionsOf(options_)),
      calibration_(options_.model, options_.calibration, options_.config),
      arrivals_(&out_, history_.replays() ? SpoolPrefix(options_.epoch) : ""),
      jobs_(options_.config.limits().requests_kept(), options_.worker_stalled_after, &out_, &history_, &gang_,
            &lineage_),
      parts_{options_, out_, history_, lineage_, base_, save_, gang_, calibration_, arrivals_, jobs_},
      membership_(parts_),
      steps_(parts_, &membership_),
      checkpoints_(parts_, &membership_),
      saves_(parts_, &membership_, &checkpoints_),
      runner_(parts_, &membership_, &steps_, &checkpoints_, &saves_),
      calls_(parts_, &membership_) {}

ServerNumbers CoordinatorState::Numbers() const {
  const internal::v1::KnownCheckpoint* newest = NewestSound(history_.state());
  // Ranks that are not there yet begin with the base's weights.
  const uint64_t weights_step = gang_.begun() ? lineage_.weights_step() : base_.base().step;
  ServerNumbers numbers;
  numbers.totals = history_.totals();
  numbers.model = ModelInfoOf(parts_, membership_.draining());
  numbers.steps_behind = lineage_.step() - std::min(weights_step, lineage_.step());
  numbers.workers = gang_.workers().size();
  numbers.ranks = gang_.num_ranks();
  numbers.generations = gang_.generation();
  numbers.jobs_open = jobs_.num_open() + arrivals_.size();
  numbers.calls = jobs_.call_counts();
  numbers.jobs_open_bytes = jobs_.open_bytes() + arrivals_.bytes();
  numbers.checkpoints = static_cast<uint64_t>(history_.state().checkpoints_size());
  if (newest != nullptr) numbers.newest_checkpoint_step = newest->step();
  numbers.checkpoint_saves_failed = save_.num_failed();
  numbers.refused = out_.refusals().counts();
  return numbers;
}

Decision CoordinatorState::Handle(absl::Time now, const Event& event, FreeBytesFunction free_bytes,
                                  const HandledTimes& times) {
  const bool says_day = times.time_of_day != absl::InfinitePast();
  out_.Begin(now, std::move(free_bytes), says_day ? times.time_of_day : now);
  membership_.Pass(times.handled_at);
  std::visit([this](const auto& e) { On(e); }, event);
  runner_.StartNext();
  saves_.SaveBeforeLeaving();
  membership_.FinishDrain();
  return out_.Take();
}

void CoordinatorState::On(const WorkerMessageEvent& event) {
  const internal::v1::WorkerMessage& message = event.message;
  if (absl::Status status = CheckWorkerMessage(message); !status.ok()) {
    return membership_.Breach(event.session, status);
  }
  if (message.has_register_()) return membership_.OnRegister(event.session, message.register_());
  if (!gang_.Has(event.session)) {
    return membership_.Breach(event.session, absl::InvalidArgumentError("its session does not begin with Register"));
  }
  gang_.Heard(event.session);
  if (message.has_heartbeat()) return membership_.OnHeartbeat(event.session, message.heartbeat());
  if (!gang_.begun()) {
    return membership_.Breach(event.session, absl::InvalidArgumentError("it answers what it was not asked yet"));
  }
  OnRank(event.session, message);
}

void CoordinatorState::OnRank(SessionId session, const internal::v1::WorkerMessage& message) {
  const uint32_t rank = gang_.RankOf(session);
  switch (message.message_case()) {
    case internal::v1::WorkerMessage::kStoreOpened:
      return membership_.OnStoreOpened(session, message.store_opened());
    case internal::v1::WorkerMessage::kReady:
      return membership_.OnReady(session, message.ready());
    case internal::v1::WorkerMessage::kVote:
      return steps_.OnVote(rank, message.vote());
    case internal::v1::WorkerMessage::kApplied:
      return steps_.OnApplied(rank, message.applied());
    case internal::v1::WorkerMessage::kResults:
      return runner_.OnResultChunk(rank, message.results());
    case internal::v1::WorkerMessage::kLogProbDone:
      return runner_.OnLogProbDone(rank, message.log_prob_done());
    case internal::v1::WorkerMessage::kVerifyDone:
      return runner_.OnVerifyDone(rank, message.verify_done());
    case internal::v1::WorkerMessage::kExportDone:
      return runner_.OnExportDone(rank, message.export_done());
    case internal::v1::WorkerMessage::kSaveStaged:
      return saves_.OnSaveStaged(rank, message.save_staged());
    case internal::v1::WorkerMessage::kSaveDone:
      return saves_.OnSaveDone(rank, message.save_done());
    case internal::v1::WorkerMessage::kRefused:
      if (!gang_.worker(rank).ready) {
        return membership_.OnRefusedConfigure(session, WorkerText(message.refused().message()));
      }
      return steps_.OnRefused(rank, message.refused());
    default:
      return;
  }
}

void CoordinatorState::On(const TickEvent&) {
  membership_.Tick();
  saves_.GiveUpWhenStalled();
  arrivals_.AnswerDueWatchers();
  jobs_.AnswerDueWaiters();
}

absl::Time CoordinatorState::NextDeadline() {
  return std::min({membership_.NextDeadline(), save_.NextLook(), arrivals_.NextDeadline(), jobs_.NextDeadline()});
}

}  // namespace stemma::server
