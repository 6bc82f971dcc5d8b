#include "worker/optim/adamw.h"

#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/scalar_tensor.h>
#include <glog/logging.h>

#include <functional>

#include "common/cost/state_slabs.h"
#include "worker/optim/slab_order.h"

namespace stemma::worker {
namespace {

const Parameter& ParameterOf(const std::vector<Parameter>& parameters, const ParameterRange& range) {
  return parameters[static_cast<size_t>(range.parameter)];
}

at::Tensor Gradients(const std::vector<Parameter>& parameters, const ParameterRange& range) {
  return ParameterOf(parameters, range).GradElements(range.begin, range.count);
}

}  // namespace

std::vector<int64_t> ElementsOf(const std::vector<Parameter>& parameters) {
  std::vector<int64_t> elements;
  for (const Parameter& p : parameters) elements.push_back(p.weight.numel());
  return elements;
}

ParameterRanges AllRanges(const std::vector<Parameter>& parameters) { return WholeParameters(ElementsOf(parameters)); }

double GradNormSquared(const Backend& backend, const std::vector<Parameter>& parameters,
                       const ParameterRanges& ranges) {
  if (ranges.empty()) return 0;
  const at::Tensor norms = at::empty({static_cast<int64_t>(ranges.size())}, backend.options(at::kDouble));
  for (size_t i = 0; i < ranges.size(); ++i) {
    backend.kernels.vector_norm({Gradients(parameters, ranges[i]), norms[static_cast<int64_t>(i)]});
  }
  const at::Tensor on_host = norms.to(at::kCPU);  // the one wait for the device
  const auto* values = on_host.const_data_ptr<double>();
  double sum = 0;
  for (int64_t i = 0; i < on_host.numel(); ++i) sum += values[i] * values[i];
  return sum;
}

std::string FirstNonfinite(const Backend& backend, const std::vector<Parameter>& parameters,
                           const ParameterRanges& ranges) {
  for (const ParameterRange& range : ranges) {
    if (backend.kernels.first_nonfinite(Gradients(parameters, range)) >= 0) return ParameterOf(parameters, range).name;
  }
  return "";
}

void ZeroGradients(std::vector<Parameter>& parameters) {
  for (Parameter& p : parameters) (p.is_sharded() ? p.grad_shard : p.grad).zero_();
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
  const auto options = states.masters.front().options().dtype(at::kFloat);
  const std::vector<at::Tensor> steps(states.masters.size(), at::full({}, static_cast<double>(step), options));
  at::_fused_adamw_(states.masters, states.grads, states.exp_avgs, states.exp_avg_sqs, /*max_exp_avg_sqs=*/{}, steps,
                    adam.learning_rate(), adam.beta1(), adam.beta2(), weight_decay, adam.eps(), /*amsgrad=*/false,
                    /*maximize=*/false);
}

bool IsFinite(const Kernels& kernels, const StatePart& part) {
  return kernels.first_nonfinite(part.weight) < 0 && kernels.first_nonfinite(part.exp_avg_sq) < 0;
}

// The update of slabs, one after the other.
class SlabStep {
 public:
  SlabStep(const Kernels& kernels, const v1::AdamParams& adam, double clip, int64_t step)
      : kernels_(kernels), adam_(adam), clip_(clip), step_(step) {}

  void Run(const std::vector<StatePart>& parts) {
    States decayed, plain;
    for (const StatePart& part : parts) {
      States& states = Decays(*part.parameter, adam_) ? decayed : plain;
      states.masters.push_back(part.master);
      states.grads.push_back(Clipped(part, parts.back()));
      states.exp_avgs.push_back(part.exp_avg);
      states.exp_avg_sqs.push_back(part.exp_avg_sq);
    }
    FusedStep(decayed, adam_, adam_.weight_decay(), step_);
    FusedStep(plain, adam_, /*weight_decay=*/0, step_);
    for (const StatePart& part : parts) {
      if (!part.parameter->master_is_weight()) part.weight.copy_(part.master);
      if (nonfinite_.empty() && !IsFinite(kernels_, part)) nonfinite_ = part.parameter->name;
    }
  }

  const std::string& nonfinite() const { return nonfinite_; }

 private:
  // The part's gradient times the clip, in a buffer as large as the first slab, which is the largest.
  at::Tensor Clipped(const StatePart& part, const StatePart& last) {
    if (clip_ == 1.0) return part.grad;
    const int64_t slab_elements = RoundUpToSlabUnit(last.slab_begin + last.grad.numel());
    if (!clipped_.defined()) clipped_ = at::empty({slab_elements}, part.grad.options());
    CHECK_LE(slab_elements, clipped_.numel());
    at::Tensor clipped = clipped_.narrow(0, part.slab_begin, part.grad.numel());
    return at::mul_out(clipped, part.grad, at::scalar_tensor(clip_, part.grad.options()));
  }

  const Kernels& kernels_;
  const v1::AdamParams& adam_;
  const double clip_;
  const int64_t step_;
  at::Tensor clipped_;
  std::string nonfinite_;
};

// Steps ranges of parameters whose states are on the device.
void StepOnDevice(const std::vector<Parameter>& parameters, const ParameterRanges& ranges, int64_t slab_elements,
                  SlabStep& step) {
  for (const Slab& slab : CutSlabs(ranges, slab_elements)) {
    std::vector<StatePart> parts;
    for (const SlabPiece& piece : slab) {
      const Parameter& p = parameters[static_cast<size_t>(piece.parameter)];
      const auto state = [&](const at::Tensor& x) { return p.StateElements(x, piece.begin, piece.count); };
      parts.push_back({&p, p.WeightElements(piece.begin, piece.count), p.GradElements(piece.begin, piece.count),
                       p.MasterElements(piece.begin, piece.count), state(p.exp_avg), state(p.exp_avg_sq),
                       piece.slab_begin});
    }
    step.Run(parts);
  }
}

}  // namespace

std::string AdamwStep(const Backend& backend, std::vector<Parameter>& parameters, const ParameterRanges& ranges,
                      const v1::AdamParams& adam, double clip, int64_t step, const HostStateOptions& host) {
  CHECK_GE(step, 1);
  CheckRanges(ranges, ElementsOf(parameters));
  ParameterRanges on_device, on_host;
  for (const ParameterRange& range : ranges) {
    const Parameter& p = ParameterOf(parameters, range);
    CHECK(p.exp_avg.defined()) << p.name << " has no moments";
    (p.states_on_host ? on_host : on_device).push_back(range);
  }
  SlabStep slab_step(backend.kernels, adam, clip, step);
  StepOnDevice(parameters, on_device, host.slab_elements, slab_step);
  StreamStates(parameters, on_host, host, [&](const std::vector<StatePart>& parts) { slab_step.Run(parts); });
  return slab_step.nonfinite();
}

}  // namespace stemma::worker
