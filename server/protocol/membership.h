// The coming and going of workers, the server's own end, and what either means for requests and weights.
//
// Thread safety: none; owned by CoordinatorState. Called with events of the worker's stream, with ticks, and by the
// classes that run jobs where a worker broke the protocol.
// Invariants:
//  (1) a worker whose message breaks the protocol loses its session: who is wrong about one message is not trusted with
//      the next.
//  (2) weights that are lost are computed again where requests are kept (durability REPLAY): the running step is
//      retried after that. Else they end their lineage: every open job, and every request whose steps came after the
//      weights that the next generation begins with, answers ROLLED_BACK from then on, never a silent rewind; where no
//      step came after them the running step is retried.
//  (3) weights that a step made not finite serve nothing: where requests are kept the step is undone and its weights
//      are given up; else every job answers NONFINITE_UPDATE until their worker goes.
//  (4) a worker that is silent is given up as one that died; so is one where their job stands still.
//  (5) a generation that loses a worker is over: the streams of its other workers are closed, and the mesh gathers
//      anew.
//
// Draining: what runs goes on to the end of its step, pass or export, at most until the deadline; what waits, and what
// would follow, answers DRAINING.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/protocol/coordinator_parts.h"

namespace stemma::server {

class Membership {
 public:
  explicit Membership(const CoordinatorParts& parts) : p_(parts) {}

  // Begins the server's life, with what earlier servers left.
  void Start();
  // Takes what reading the next generation's checkpoint has led to (BaseKeeper).
  void OnBaseRead(const absl::Status& read);
  // Gives up the weights that there are: the model goes on from a checkpoint, under a new lineage.
  void GoBack(const internal::v1::KnownCheckpoint& checkpoint);
  void OnRegister(SessionId session, const internal::v1::Register& message);
  void OnStoreOpened(SessionId session, const internal::v1::StoreOpened& opened);
  void OnReady(SessionId session, const internal::v1::Ready& message);
  void OnHeartbeat(SessionId session, const internal::v1::Heartbeat& heartbeat);
  void OnLost(const WorkerLostEvent& event);
  void OnRefusedConfigure(SessionId session, const std::string& why);
  // The session's stream is closed; the step of its worker, if it is one, gets another attempt, as after a crash.
  void Breach(SessionId session, const absl::Status& what);
  // Gives a worker up. Where it said nothing wrong, `why` is what its stream is closed with.
  void Close(SessionId session, const absl::Status& why, const std::string& reason);
  // The running step of this request wrote numbers that are not finite: the model stays with them, UNUSABLE, until that
  // worker is lost. The next one loads the newest checkpoint, or else the model directory, under a new lineage. Where
  // requests are kept, the step is taken back instead, with its request's end, and the weights before it are computed
  // again.
  void LoseWeights(UpdateRecord& record, const std::string& parameter);
  // Whether the next step of the update that has no result yet is committed: it cannot end before.
  bool IsDecided(const UpdateRecord& record) const;
  // Serves nothing any more, because what is kept cannot be read, or not computed again: an operator has to look.
  void Stop(const absl::Status& why);
  // The weights that a generation has loaded or computed again have other bits than before: once for each generation.
  // `what`: begins the sentence that says so.
  void Diverge(const std::string& what);
  // The weights are the lineage's again: clients are served.
  void CatchUp();
  // Ends a generation all of whose ranks may be right.
  void GiveUp(const std::string& reason);

  void Drain(absl::Duration within);
  bool draining() const { return draining_; }
  // Ends the server's work where it drains and nothing runs any more.
  void FinishDrain();
  void SaveCalibration();

  // Lets the time since the last event pass for whom it is counted (CountedTime).
  void Pass(absl::Time handled_at);
  // Gives up whoever is due: the worker, the drain, the waiting for another worker.
  void Tick();
  absl::Time NextDeadline() const;

  // Accepts what has its plan, up to the first that has none. Without a worker everything waits for the next one's
  // plan.
  void AcceptArrivals();
  // OK, or why no job is accepted now.
  absl::Status NotServing() const;

 private:
  void Refuse(SessionId session, const std::string& incarnation, const absl::Status& why);
  void BeginGeneration();
  void BeginServing();
  void Lose(SessionId session, const std::string& reason);
  void KeepIncident(const std::string& reason);
  void Dismiss(LogLevel level, const std::string& reason);
  void EndGeneration(const std::string& reason);
  void FindBase();
  void RefuseBase(const absl::Status& why);
  bool CheckLoaded(const std::string& weights_digest);
  void RetryRunning(const std::string& reason);
  void UndoStep(UpdateRecord& record, const std::string& parameter);
  void EndDrain();
  void CallAgain();

  const CoordinatorParts p_;
  bool draining_ = false, drained_ = false;
  bool diverged_ = false;  // this generation's weights are not those of before
  absl::Time drain_deadline_ = absl::InfiniteFuture();
};

}  // namespace stemma::server
