#include "worker/optim/adamw.h"

#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/zeros_like.h>
#include <glog/logging.h>

#include <cmath>

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

void FusedStep(const std::vector<Parameter*>& group, const v1::AdamParams& adam, double weight_decay, int64_t step) {
  if (group.empty()) return;
  std::vector<at::Tensor> masters, grads, exp_avgs, exp_avg_sqs, steps;
  for (Parameter* p : group) {
    masters.push_back(p->master);
    grads.push_back(p->grad);
    exp_avgs.push_back(p->exp_avg);
    exp_avg_sqs.push_back(p->exp_avg_sq);
    // The op does not advance its step: it is given the step being made.
    steps.push_back(at::full({}, static_cast<double>(step), at::TensorOptions().dtype(at::kFloat)));
  }
  at::_fused_adamw_(masters, grads, exp_avgs, exp_avg_sqs, /*max_exp_avg_sqs=*/{}, steps, adam.learning_rate(),
                    adam.beta1(), adam.beta2(), weight_decay, adam.eps(), /*amsgrad=*/false, /*maximize=*/false);
}

}  // namespace

void AdamwStep(std::vector<Parameter>& parameters, const v1::AdamParams& adam, double clip, int64_t step) {
  CHECK_GE(step, 1);
  std::vector<Parameter*> decayed, plain;
  for (Parameter& p : parameters) {
    if (!p.exp_avg.defined()) {
      p.exp_avg = at::zeros_like(p.master);
      p.exp_avg_sq = at::zeros_like(p.master);
    }
    if (clip != 1.0) p.grad.mul_(clip);
    const bool all = adam.weight_decay_scope() == v1::AdamParams::ALL;
    (all || p.is_matrix() ? decayed : plain).push_back(&p);
  }
  FusedStep(decayed, adam, adam.weight_decay(), step);
  FusedStep(plain, adam, /*weight_decay=*/0, step);
  for (Parameter& p : parameters) {
    if (!p.weight.is_same(p.master)) p.weight.copy_(p.master);
  }
}

}  // namespace stemma
