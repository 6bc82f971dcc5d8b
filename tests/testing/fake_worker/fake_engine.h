// An engine without LibTorch: keeps the worker's contract (payloads, fence, hooks), computes nothing. What it does is
// told by the uid of a step's first group:
//   "hang..."       waits until it is cancelled, in a log-prob pass and a verification, too
//   "gate..."       waits for the file "gate" in the data directory
//   "nonfinite..."  votes no, NONFINITE
//   "crash..."      the process ends in Prepare          "stay..."       the process ends in Apply
//   "stuck..."      waits for ever, as a hung device does; so does an export of the name "stuck"
//   "ruin..."       APPLY reports a weight that is not finite
//   "lost..."       Prepare finds another rank gone; so does an export, a save, a log-prob pass or a verification of
//   this
//                   name
//   "parted..."     Apply finds another rank gone
//   "refuse..."     answers Prepare with an error        anything else   votes yes, gradient norm 1
// An export of the name "taken" finds it there. A save into the folder "refuse" is refused; any other is staged, and
// done by another thread. Log-probs of token t are -t; the runs of a verification differ by half of the gradient's
// norm. Rank 0 of several tells an address of a store that it never opened.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/testing/namespaces.h"
#include "worker/engine/engine.h"
#include "worker/engine/fence/step_fence.h"

namespace stemma::testing {

class FakeEngine : public Engine {
 public:
  FakeEngine(const internal::v1::Configure& configure, const std::string& incarnation);

  const internal::v1::Ready& ready() const override { return ready_; }
  absl::Status AddPayload(internal::v1::PayloadChunk chunk) override;
  void DropPayload(const std::string& id) override { payloads_.erase(id); }
  absl::StatusOr<internal::v1::Vote> Prepare(const internal::v1::Prepare& prepare, const EngineHooks& hooks) override;
  absl::StatusOr<internal::v1::Applied> Apply(const internal::v1::Apply& apply) override;
  void Abort(const internal::v1::StepKey& key) override;
  absl::Status LogProb(const internal::v1::LogProb& log_prob, const EngineHooks& hooks) override;
  absl::StatusOr<internal::v1::VerifyDone> Verify(const internal::v1::Verify& verify,
                                                  const EngineHooks& hooks) override;
  absl::StatusOr<uint64_t> Export(const internal::v1::Export& request) override;
  absl::Status Save(const internal::v1::Save& request, const SaveAnswers& answers) override;

 private:
  struct Payload {
    std::map<uint32_t, v1::PromptGroup> groups;  // by index in the request
    bool complete = false;
  };
  // A thread that is waited for.
  struct Writer {
    explicit Writer(std::function<void()> write) : thread(std::move(write)) {}
    ~Writer() { thread.join(); }
    std::thread thread;
  };
  const Payload* Find(const std::string& id) const;
  void WaitForGate(const EngineHooks& hooks) const;

  internal::v1::Ready ready_;
  StepFence fence_;
  const std::string gate_;  // a file: groups named "gate..." wait until it is there
  std::map<std::string, Payload> payloads_;
  std::unique_ptr<Writer> writer_;  // of the last save
  bool crash_in_apply_ = false, ruin_in_apply_ = false, lose_in_apply_ = false;
};

absl::StatusOr<std::unique_ptr<Engine>> CreateFakeEngine(const internal::v1::Configure& configure,
                                                         const WorkerIdentity& identity, const TellStore& tell);

}  // namespace stemma::testing
