#include "worker/optim/adamw.h"

#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <glog/logging.h>

#include <functional>

#include "worker/kernels/finite.h"
#include "worker/optim/slab_order.h"

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

bool IsFinite(const StatePart& part) { return kernels::AllFinite(part.weight) && kernels::AllFinite(part.exp_avg_sq); }

// Calls `step` with parts of parameters whose states are on the device, a slab at a time.
void StepOnDevice(const std::vector<Parameter*>& parameters, int64_t slab_elements,
                  const std::function<void(const std::vector<StatePart>&)>& step) {
  std::vector<int64_t> elements;
  for (const Parameter* p : parameters) elements.push_back(p->grad.numel());
  for (const Slab& slab : CutSlabs(elements, slab_elements)) {
    std::vector<StatePart> parts;
    for (const SlabPiece& piece : slab) {
      const Parameter& p = *parameters[static_cast<size_t>(piece.parameter)];
      const auto of = [&](const at::Tensor& x) { return x.view(-1).narrow(0, piece.begin, piece.count); };
      parts.push_back({&p, of(p.weight), of(p.grad), of(p.master), of(p.exp_avg), of(p.exp_avg_sq)});
    }
    step(parts);
  }
}

}  // namespace

std::string AdamwStep(std::vector<Parameter>& parameters, const v1::AdamParams& adam, double clip, int64_t step,
                      const HostStateOptions& host) {
  CHECK_GE(step, 1);
  std::vector<Parameter*> on_device, on_host;
  for (Parameter& p : parameters) {
    CHECK(p.exp_avg.defined()) << p.name << " has no moments";
    if (clip != 1.0) p.grad.mul_(clip);
    (p.states_on_host ? on_host : on_device).push_back(&p);
  }
  std::string nonfinite;
  const auto step_parts = [&](const std::vector<StatePart>& parts) {
    StepParts(parts, adam, step);
    for (const StatePart& part : parts) {
      if (nonfinite.empty() && !IsFinite(part)) nonfinite = part.parameter->name;
    }
  };
  StepOnDevice(on_device, host.slab_elements, step_parts);
  StreamStates(on_host, host, step_parts);
  return nonfinite;
}

}  // namespace stemma
