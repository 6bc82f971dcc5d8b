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

namespace stemma::worker {

// Called between waves.
struct EngineHooks {
  std::function<bool()> cancelled = [] { return false; };
  std::function<void(const internal::v1::Heartbeat&)> progress = [](const internal::v1::Heartbeat&) {};
  std::function<void(internal::v1::ResultChunk)> results = [](internal::v1::ResultChunk) {};  // kResultChunkBytes each
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

  // Forward-only; results through hooks.results.
  virtual absl::Status LogProb(const internal::v1::LogProb& log_prob, const EngineHooks& hooks) = 0;
  virtual absl::StatusOr<uint64_t> Export(const internal::v1::Export& request) = 0;  // bytes written
};

// Loads the model of configure.config. `incarnation` is this process's.
absl::StatusOr<std::unique_ptr<Engine>> CreateEngine(const internal::v1::Configure& configure,
                                                     const std::string& incarnation);

}  // namespace stemma::worker
