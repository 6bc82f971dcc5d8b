#include "worker/optim/adamw.h"

#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/zeros_like.h>
#include <glog/logging.h>

#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "worker/memory/host_arena.h"

namespace stemma {

double GradNormSquared(const std::vector<Parameter>& parameters) {
  double sum = 0;
  for (const Parameter& p : parameters) {
    const double norm = at::linalg_vector_norm(p.grad, 2, {}, false, at::kDouble).item<double>();
    sum += norm * norm;
  }
  return sum;
}

std::string FirstNonfinite(const std::vector<Parameter>& parameters) {
  for (const Parameter& p : parameters) {
    if (!at::isfinite(p.grad).all().item<bool>()) return p.name;
  }
  return "";
}

void ZeroGradients(std::vector<Parameter>& parameters) {
  for (Parameter& p : parameters) p.grad.zero_();
}

namespace {

// What the fused op takes; all of one parameter, or of one part of a slab, at the same index.
struct States {
  std::vector<at::Tensor> masters, grads, exp_avgs, exp_avg_sqs;
};

bool Decays(const Parameter& p, const v1::AdamParams& adam) {
  return adam.weight_decay_scope() == v1::AdamParams::ALL || p.is_matrix();
}

void FusedStep(States& states, const v1::AdamParams& adam, double weight_decay, int64_t step) {
  if (states.masters.empty()) return;
  // The op does not advance its step: it is given the step being made.
  const std::vector<at::Tensor> steps(states.masters.size(),
                                      at::full({}, static_cast<double>(step), at::TensorOptions().dtype(at::kFloat)));
  at::_fused_adamw_(states.masters, states.grads, states.exp_avgs, states.exp_avg_sqs, /*max_exp_avg_sqs=*/{}, steps,
                    adam.learning_rate(), adam.beta1(), adam.beta2(), weight_decay, adam.eps(), /*amsgrad=*/false,
                    /*maximize=*/false);
}

void StepOnDevice(const std::vector<Parameter*>& group, const v1::AdamParams& adam, double weight_decay, int64_t step) {
  States states;
  for (Parameter* p : group) {
    states.masters.push_back(p->master);
    states.grads.push_back(p->grad);
    states.exp_avgs.push_back(p->exp_avg);
    states.exp_avg_sqs.push_back(p->exp_avg_sq);
  }
  FusedStep(states, adam, weight_decay, step);
  for (Parameter* p : group) {
    if (!p->master_is_weight()) p->weight.copy_(p->master);
  }
}

void StepParts(const std::vector<StatePart>& parts, const v1::AdamParams& adam, int64_t step) {
  States decayed, plain;
  for (const StatePart& part : parts) {
    States& states = Decays(*part.parameter, adam) ? decayed : plain;
    states.masters.push_back(part.master);
    states.grads.push_back(part.grad);
    states.exp_avgs.push_back(part.exp_avg);
    states.exp_avg_sqs.push_back(part.exp_avg_sq);
  }
  FusedStep(decayed, adam, adam.weight_decay(), step);
  FusedStep(plain, adam, /*weight_decay=*/0, step);
  for (const StatePart& part : parts) {
    if (!part.parameter->master_is_weight()) part.weight.copy_(part.master);
  }
}

}  // namespace

void AdamwStep(std::vector<Parameter>& parameters, const v1::AdamParams& adam, double clip, int64_t step,
               const HostStateOptions& host) {
  CHECK_GE(step, 1);
  std::vector<Parameter*> decayed, plain, on_host;
  for (Parameter& p : parameters) {
    CHECK(p.exp_avg.defined()) << p.name << " has no moments";
    if (clip != 1.0) p.grad.mul_(clip);
    (p.states_on_host ? on_host : Decays(p, adam) ? decayed : plain).push_back(&p);
  }
  StepOnDevice(decayed, adam, adam.weight_decay(), step);
  StepOnDevice(plain, adam, /*weight_decay=*/0, step);
  StreamStates(on_host, host, [&](const std::vector<StatePart>& parts) { StepParts(parts, adam, step); });
}

}  // namespace stemma
