#include "worker/optim/adamw.h"

#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/scalar_tensor.h>
#include <glog/logging.h>

#include "common/cost/state_slabs.h"
#include "worker/optim/slab_order.h"

namespace stemma::worker {
namespace {

const Parameter& ParameterOf(const std::vector<Parameter>& parameters, const ParameterRange& range) {
  return parameters[static_cast<size_t>(range.parameter)];
}

struct SlabElements {
  int64_t on_device, streamed;
};

// `asked`: of both; 0: what this device and this run have.
SlabElements SlabElementsOf(const Backend& backend, const std::vector<Parameter>& parameters, int64_t asked) {
  if (asked != 0) return {asked, asked};
  const bool has_masters = !parameters.empty() && !parameters.front().master_is_weight();
  const int64_t streamed = StateSlabElements(has_masters);
  return {has_masters ? backend.slab_elements_with_masters : streamed, streamed};
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

ParameterRanges AllRanges(const std::vector<Parameter>& parameters) { return RangesOfAll(ElementsOf(parameters)); }

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
  const at::Tensor index = at::empty({}, backend.options(at::kLong));
  for (const ParameterRange& range : ranges) {
    backend.kernels.first_nonfinite({Gradients(parameters, range), index});
    if (index.item<int64_t>() >= 0) return ParameterOf(parameters, range).name;
  }
  return "";
}

std::string NonfiniteNormText(const Backend& backend, const std::vector<Parameter>& parameters,
                              const ParameterRanges& ranges) {
  const std::string first = FirstNonfinite(backend, parameters, ranges);
  return first.empty() ? "the norm of the gradients overflows" : "the gradient of " + first + " is not finite";
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

// `step`: [], fp32. The op does not advance it: it is given the step being made.
void FusedStep(States& states, const v1::AdamParams& adam, double weight_decay, const at::Tensor& step) {
  if (states.masters.empty()) return;
  const std::vector<at::Tensor> steps(states.masters.size(), step);
  at::_fused_adamw_(states.masters, states.grads, states.exp_avgs, states.exp_avg_sqs, /*max_exp_avg_sqs=*/{}, steps,
                    adam.learning_rate(), adam.beta1(), adam.beta2(), weight_decay, adam.eps(), /*amsgrad=*/false,
                    /*maximize=*/false);
}

// The update of slabs, one after the other. Nothing waits for the device before `nonfinite`.
class SlabStep {
 public:
  // `parts`: how many there will be in all slabs.
  SlabStep(const Backend& backend, const AdamwUpdate& update, int64_t parts)
      : kernels_(backend.kernels),
        adam_(update.adam),
        clip_(update.clip),
        step_(at::full({}, static_cast<double>(update.step), backend.options(at::kFloat))),
        found_P2_(at::empty({parts, 2}, backend.options(at::kLong))) {}

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
      LookAt(part);
    }
  }

  // Returns the name of the first parameter with a weight or a second moment that is not finite; empty: none has.
  std::string nonfinite() const {
    const at::Tensor on_host = found_P2_.cpu();  // the one wait for the device
    const auto* found = on_host.const_data_ptr<int64_t>();
    CHECK_EQ(on_host.numel(), static_cast<int64_t>(2 * names_.size()));
    for (const std::string* name : names_) {
      if (*found++ >= 0) return *name;
      if (*found++ >= 0) return *name;
    }
    return "";
  }

 private:
  void LookAt(const StatePart& part) {
    const at::Tensor found_2 = found_P2_[static_cast<int64_t>(names_.size())];
    kernels_.first_nonfinite({part.weight, found_2[0]});
    kernels_.first_nonfinite({part.exp_avg_sq, found_2[1]});
    names_.push_back(&part.parameter->name);
  }

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
  const at::Tensor step_;
  const at::Tensor found_P2_;              // FirstNonfiniteOperands::index of each part's weights and second moments
  std::vector<const std::string*> names_;  // of the parts so far
  at::Tensor clipped_;
};

int64_t PartsOf(const std::vector<Slab>& slabs) {
  int64_t parts = 0;
  for (const Slab& slab : slabs) parts += static_cast<int64_t>(slab.size());
  return parts;
}

// Steps ranges of parameters whose states are on the device.
void StepOnDevice(const std::vector<Parameter>& parameters, const std::vector<Slab>& slabs, SlabStep& step) {
  for (const Slab& slab : slabs) {
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
                      const AdamwUpdate& update, const HostStateOptions& host) {
  CHECK_GE(update.step, 1);
  CheckRanges(ranges, ElementsOf(parameters));
  ParameterRanges on_device, on_host;
  for (const ParameterRange& range : ranges) {
    const Parameter& p = ParameterOf(parameters, range);
    CHECK(p.exp_avg.defined()) << p.name << " has no moments";
    (p.states_on_host ? on_host : on_device).push_back(range);
  }
  HostStateOptions options = host;
  const SlabElements elements = SlabElementsOf(backend, parameters, host.slab_elements);
  options.slab_elements = elements.streamed;
  const std::vector<Slab> slabs = CutSlabs(on_device, elements.on_device);
  const int64_t streamed = PartsOf(CutSlabs(on_host, options.slab_elements));
  SlabStep slab_step(backend, update, PartsOf(slabs) + streamed);
  StepOnDevice(parameters, slabs, slab_step);
  StreamStates(parameters, on_host, options, [&](const std::vector<StatePart>& parts) { slab_step.Run(parts); });
  return slab_step.nonfinite();
}

}  // namespace stemma::worker
