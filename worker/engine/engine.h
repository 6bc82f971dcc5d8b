// The engine: one model, its optimizer and the payloads in flight, behind calls that mirror the worker's messages.
//
// Thread safety: none; owned by the engine thread, which makes all ATen calls. `cancelled` may be asked from it only.
// Invariants: Prepare changes nothing that outlives the attempt; Apply is the only call that changes weights; keys
// (epoch, incarnation, generation, step, attempt) of a vote and its Apply agree, or the call is refused.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "stemma/internal/v1/worker.pb.h"
#include "worker/checkpoint/save_answers.h"

namespace stemma::worker {

// Called between waves.
struct EngineHooks {
  std::function<bool()> cancelled = [] { return false; };
  std::function<void(const internal::v1::Heartbeat&)> progress = [](const internal::v1::Heartbeat&) {};
  // Takes messages as ResultSender makes them (worker/engine/results.h).
  std::function<void(internal::v1::ResultChunk)> results = [](const internal::v1::ResultChunk&) {};
};

class Engine {
 public:
  virtual ~Engine() = default;
  virtual const internal::v1::Ready& ready() const = 0;

  // Payload chunks of one id arrive in order; groups are held once, here.
  virtual absl::Status AddPayload(internal::v1::PayloadChunk chunk) = 0;
  virtual void DropPayload(const std::string& id) = 0;

  // Phases A, B, C. A failure that a request can cause (non-finite, out of memory, cancelled) is a `no` vote. Errors:
  // Unavailable - another rank is gone, and with it the generation: this process can compute nothing more; any other -
  // the message itself is refused (unknown payload, keys of another attempt or incarnation, step not its own + 1).
  virtual absl::StatusOr<internal::v1::Vote> Prepare(const internal::v1::Prepare& prepare,
                                                     const EngineHooks& hooks) = 0;
  // Clip, AdamW, step + 1 (or discard). What it wrote may be not finite: Applied then names a parameter, and the
  // weights are of no use any more. Errors: Unavailable - as of Prepare, the weights are gone with this process; any
  // other - refused, nothing changed.
  virtual absl::StatusOr<internal::v1::Applied> Apply(const internal::v1::Apply& apply) = 0;
  virtual void Abort(const internal::v1::StepKey& key) = 0;

  // Forward-only; results through hooks.results. Errors: Unavailable - as of Prepare; any other - the answer.
  virtual absl::Status LogProb(const internal::v1::LogProb& log_prob, const EngineHooks& hooks) = 0;
  // Computes a step's gradient by two plans and compares; results of both runs through hooks.results. What the ranks of
  // a run could not do is in its votes. Errors: as of LogProb.
  virtual absl::StatusOr<internal::v1::VerifyDone> Verify(const internal::v1::Verify& verify,
                                                          const EngineHooks& hooks) = 0;
  // Returns the bytes written. Errors: as of LogProb.
  virtual absl::StatusOr<uint64_t> Export(const internal::v1::Export& request) = 0;
  // OK: both answers were given or will be, the second one while the engine does other work. Else neither was: any
  // error is the answer.
  virtual absl::Status Save(const internal::v1::Save& request, const SaveAnswers& answers) = 0;
};

// What this process is to its server and to the other ranks.
struct WorkerIdentity {
  std::string incarnation;  // random for each process
  std::string address;      // IP literal at which other ranks reach it; empty: not known
};

// Makes the engine of the rank that Configure names. Where the mesh has several, `tell` is called once by rank 0,
// before it waits for the others. Errors: as of loading the model; Unavailable - the other ranks did not come, or have
// gone: the generation is over.
using TellStore = std::function<void(const internal::v1::StoreOpened&)>;
using EngineFactory = std::function<absl::StatusOr<std::unique_ptr<Engine>>(
    const internal::v1::Configure& configure, const WorkerIdentity& identity, const TellStore& tell)>;

}  // namespace stemma::worker
