#include "worker/optim/states.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/util/accumulate.h>
#include <glog/logging.h>

#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "common/base/round_up.h"
#include "worker/memory/host_arena.h"

namespace stemma::worker {
namespace {

// The states of one parameter, and their shape.
struct OwnedStates {
  Parameter& parameter;
  std::vector<int64_t> sizes;

  int64_t bytes() const { return c10::multiply_integers(sizes) * static_cast<int64_t>(parameter.grad.element_size()); }
};

std::vector<OwnedStates> Owned(std::vector<Parameter>& parameters, const ParameterRanges& ranges) {
  std::vector<OwnedStates> owned;
  for (Parameter& p : parameters) owned.push_back({p, {0}});
  for (const ParameterRange& range : ranges) {
    auto& [parameter, sizes] = owned[static_cast<size_t>(range.parameter)];
    CHECK(sizes == std::vector<int64_t>{0}) << parameter.name << ": a rank owns one range of a parameter";
    parameter.state_begin = range.begin;
    sizes = range.count == parameter.grad.numel() ? parameter.grad.sizes().vec() : std::vector<int64_t>{range.count};
  }
  return owned;
}

// In the arena, whose ownership the tensor shares.
at::Tensor OnHost(const std::shared_ptr<HostArena>& arena, const OwnedStates& states) {
  if (states.bytes() == 0) return at::empty(states.sizes, states.parameter.grad.options().device(at::kCPU));
  void* block = arena->Take(states.bytes());
  CHECK(block != nullptr) << "the arena was made for all states";
  return at::from_blob(
      block, states.sizes, [arena](void* p) { arena->Give(p); }, states.parameter.grad.options().device(at::kCPU));
}

void MakeOnDevice(const std::vector<OwnedStates>& owned) {
  for (const auto& [p, sizes] : owned) {
    if (!p.master_is_weight()) p.master = at::empty(sizes, p.grad.options());
    p.exp_avg = at::zeros(sizes, p.grad.options());
    p.exp_avg_sq = at::zeros(sizes, p.grad.options());
  }
}

absl::Status MakeOnHost(const std::vector<OwnedStates>& owned, PageLock* page_lock) {
  int64_t bytes = 0;
  for (const OwnedStates& states : owned) {
    bytes += (states.parameter.master_is_weight() ? 2 : 3) * RoundUp(states.bytes(), HostArena::kAlignment);
  }
  absl::StatusOr<std::unique_ptr<HostArena>> made = HostArena::Create(bytes, page_lock);
  if (!made.ok()) return made.status();
  const std::shared_ptr<HostArena> arena = std::move(made).value();
  for (const OwnedStates& states : owned) {
    Parameter& p = states.parameter;
    if (!p.master_is_weight()) p.master = OnHost(arena, states);
    p.exp_avg = OnHost(arena, states).zero_();
    p.exp_avg_sq = OnHost(arena, states).zero_();
    p.states_on_host = true;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status MakeStates(std::vector<Parameter>& parameters, v1::OptimizerResidency residency,
                        const ParameterRanges& owned, PageLock* page_lock) {
  const std::vector<OwnedStates> states = Owned(parameters, owned);
  if (residency == v1::HOST) return MakeOnHost(states, page_lock);
  MakeOnDevice(states);
  return absl::OkStatus();
}

}  // namespace stemma::worker
