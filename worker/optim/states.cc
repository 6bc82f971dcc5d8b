#include "worker/optim/states.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros_like.h>
#include <glog/logging.h>

#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "common/base/round_up.h"
#include "worker/memory/host_arena.h"

namespace stemma::worker {
namespace {

// Like `x`, in the arena; the tensor shares its ownership.
at::Tensor OnHost(const std::shared_ptr<HostArena>& arena, const at::Tensor& x) {
  void* block = arena->Take(static_cast<int64_t>(x.nbytes()));
  CHECK(block != nullptr) << "the arena was made for all states";
  return at::from_blob(
      block, x.sizes(), [arena](void* p) { arena->Give(p); }, x.options());
}

void MakeOnDevice(std::vector<Parameter>& parameters) {
  for (Parameter& p : parameters) {
    if (!p.master_is_weight()) p.master = at::empty(p.grad.sizes(), p.grad.options());
    p.exp_avg = at::zeros_like(p.grad);
    p.exp_avg_sq = at::zeros_like(p.grad);
  }
}

absl::Status MakeOnHost(std::vector<Parameter>& parameters) {
  int64_t bytes = 0;
  for (const Parameter& p : parameters) {
    const int64_t state_bytes = RoundUp(static_cast<int64_t>(p.grad.nbytes()), HostArena::kAlignment);
    bytes += (p.master_is_weight() ? 2 : 3) * state_bytes;
  }
  absl::StatusOr<std::unique_ptr<HostArena>> made = HostArena::Create(bytes);
  if (!made.ok()) return made.status();
  const std::shared_ptr<HostArena> arena = std::move(made).value();
  for (Parameter& p : parameters) {
    if (!p.master_is_weight()) p.master = OnHost(arena, p.grad);
    p.exp_avg = OnHost(arena, p.grad).zero_();
    p.exp_avg_sq = OnHost(arena, p.grad).zero_();
    p.states_on_host = true;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status MakeStates(std::vector<Parameter>& parameters, v1::OptimizerResidency residency) {
  if (residency == v1::HOST) return MakeOnHost(parameters);
  MakeOnDevice(parameters);
  return absl::OkStatus();
}

}  // namespace stemma::worker
