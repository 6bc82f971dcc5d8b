// The head's rows, products with mixed operands, and the search for numbers that are not finite.
#include <ATen/ATen.h>

#include <limits>

#include "absl/strings/str_cat.h"
#include "worker/backend/self_check/cases.h"

namespace stemma::worker::self_check {
namespace {

struct HeadShape {
  int64_t rows, vocab;
  bool entropy;

  bool is_large() const { return rows > 1000; }
};
// Rows of one and of several tiles, in packs and without; more rows than a device's grid has blocks.
constexpr HeadShape kHeadShapes[] = {{1, 2, true},    {3, 1003, false}, {5, 12296, true}, {33, 257, false},
                                     {17, 130, true}, {2, 32003, true}, {3200, 64, true}};
constexpr double kInverseTemperature = 1.25;
constexpr int64_t kLargeCount = int64_t{1} << 20;

std::string HeadShapeText(const HeadShape& shape) {
  return absl::StrCat("[", shape.rows, ", ", shape.vocab, "]", shape.entropy ? " with entropy" : "");
}

// Logits of usual size; a row of large ones; one whose softmax is all on one token; one that is
// flat.
at::Tensor Logits(const HeadShape& shape, Operands& operands) {
  at::Tensor logits = operands.Draw({shape.rows, shape.vocab}) * 3;
  if (shape.rows > 1) logits.select(0, 1).mul_(10);
  if (shape.rows > 2) logits[2][shape.vocab - 1] = 1e4;
  if (shape.rows > 3) logits.select(0, 3).fill_(-7);
  return operands.Rounded(logits, Numbers::kAcc);
}

// One target is a token of another shard.
at::Tensor Targets(const HeadShape& shape, Operands& operands) {
  at::Tensor targets = operands.DrawIntegers(shape.vocab, shape.rows);
  targets[0] = shape.vocab - 1;
  if (shape.rows > 4) targets[4] = -1;
  return targets;
}

// Logits as a side's head holds them.
at::Tensor GivenLogits(const Side& side, Operands& operands, const at::Tensor& values) {
  return operands.Given(values, Numbers::kAcc, Layout::kInOrder, side.logits_row_quantum);
}

void RunHeadForward(const Side& side, Operands& operands, const HeadShape& shape) {
  const at::Tensor logits = GivenLogits(side, operands, Logits(shape, operands));
  const at::Tensor targets = operands.GivenIntegers(Targets(shape, operands));
  const at::Tensor softmax = operands.Written("softmax_T2", {shape.rows, 2}, Numbers::kRows);
  const at::Tensor log_prob = operands.Written("log_prob_T", {shape.rows}, Numbers::kRows);
  const at::Tensor entropy = shape.entropy ? operands.Written("entropy_T", {shape.rows}, Numbers::kRows) : at::Tensor();
  side.kernels.head_forward({.logits_TV = logits,
                             .targets_T = targets,
                             .softmax_T2 = softmax,
                             .log_prob_T = log_prob,
                             .entropy_T = entropy,
                             .inverse_temperature = kInverseTemperature});
}

struct SoftmaxRows {
  at::Tensor softmax_T2, entropy_T;
};

SoftmaxRows SoftmaxOf(const at::Tensor& logits) {
  const at::Tensor max = logits.amax(-1), shifted = (logits - max.unsqueeze(1)) * kInverseTemperature;
  const at::Tensor log_sum = shifted.exp().sum(-1).log(), log_p = shifted - log_sum.unsqueeze(1);
  return {at::stack({max, log_sum}, 1), -(log_p.exp() * log_p).sum(-1)};
}

// Where a backend's gradients of logits lie, as worker/ops/head.cc places them.
at::Tensor DlogitsIn(const Side& side, const at::Tensor& logits, at::ScalarType run_dtype) {
  return side.dlogits_in_run_dtype ? logits.view(run_dtype).narrow(1, 0, logits.size(1)) : logits;
}

// The first row has no gradient and logits that are not finite.
void RunHeadBackward(const Side& side, Operands& operands, const HeadShape& shape) {
  at::Tensor values = Logits(shape, operands);
  const SoftmaxRows rows = SoftmaxOf(values);
  at::Tensor dlog_prob_values = operands.Draw({shape.rows}), dentropy_values = operands.Draw({shape.rows});
  if (shape.rows > 1) {
    values.select(0, 0).fill_(std::numeric_limits<double>::infinity());
    rows.softmax_T2.select(0, 0).fill_(std::numeric_limits<double>::quiet_NaN());
    dlog_prob_values[0] = 0;
    dentropy_values[0] = 0;
  }
  const at::Tensor logits = GivenLogits(side, operands, values);
  const at::Tensor targets = operands.GivenIntegers(Targets(shape, operands));
  const at::Tensor softmax = operands.Given(rows.softmax_T2, Numbers::kRows);
  const at::Tensor dlog_prob = operands.Given(dlog_prob_values, Numbers::kRows);
  at::Tensor entropy, dentropy;
  if (shape.entropy) {
    entropy = operands.Given(rows.entropy_T, Numbers::kRows);
    dentropy = operands.Given(dentropy_values, Numbers::kRows);
  }
  const at::Tensor dlogits = DlogitsIn(side, logits, operands.run_dtype());
  operands.Compare("dlogits_TV", dlogits, side.dlogits_in_run_dtype ? Numbers::kRun : Numbers::kAcc);
  side.kernels.head_backward({.logits_TV = logits,
                              .dlogits_TV = dlogits,
                              .targets_T = targets,
                              .softmax_T2 = softmax,
                              .dlog_prob_T = dlog_prob,
                              .entropy_T = entropy,
                              .dentropy_T = dentropy,
                              .inverse_temperature = kInverseTemperature});
}

struct ProductShape {
  int64_t rows, in, out;
};
constexpr ProductShape kProductShapes[] = {{1, 64, 128}, {67, 33, 129}, {300, 256, 96}, {1030, 17, 40}};

std::string HeadShapeText(const ProductShape& shape) {
  return absl::StrCat("[", shape.rows, ", ", shape.in, "] to ", shape.out);
}

// Gradients of logits as the head's backward leaves them.
at::Tensor GivenDlogits(const Side& side, Operands& operands, const ProductShape& shape) {
  at::Tensor values = operands.Draw({shape.rows, shape.out});
  if (!side.dlogits_in_run_dtype) return GivenLogits(side, operands, values);
  values = operands.Rounded(values, Numbers::kRun);
  const at::Tensor memory = GivenLogits(side, operands, at::zeros_like(values));
  at::Tensor dlogits = DlogitsIn(side, memory, operands.run_dtype());
  dlogits.copy_(values);
  return dlogits;
}

void RunAddWeightGradient(const Side& side, Operands& operands, const ProductShape& shape, bool of_logits) {
  const at::Tensor dy =
      of_logits ? GivenDlogits(side, operands, shape) : operands.Normal({shape.rows, shape.out}, Numbers::kRun);
  const at::Tensor x = operands.Normal({shape.rows, shape.in}, Numbers::kRun);
  const at::Tensor dweight = operands.AddedTo("dweight_OI", {shape.out, shape.in}, Numbers::kAcc);
  side.kernels.add_weight_gradient({.dy_TO = dy, .x_TI = x, .dweight_OI = dweight});
}

// No number that is not finite; one at each end; two, of which the first counts.
struct BadNumbers {
  int64_t count;
  std::vector<int64_t> at;
};

void RunFirstNonfinite(const Side& side, Operands& operands, const BadNumbers& bad, Numbers numbers) {
  at::Tensor values = operands.Draw({bad.count});
  double number = std::numeric_limits<double>::infinity();
  for (const int64_t index : bad.at) {
    values[index] = number;
    number = number > 0 ? -number : std::numeric_limits<double>::quiet_NaN();
  }
  const at::Tensor given = operands.Given(values, numbers), index = at::full({}, -2, given.options().dtype(at::kLong));
  side.kernels.first_nonfinite({given, index});
  operands.Compare("index", index.to(at::kDouble), Numbers::kRows);
}

}  // namespace

std::vector<Case> HeadForwardCases(const CheckShape&) {
  std::vector<Case> cases;
  for (const HeadShape& shape : kHeadShapes) {
    cases.push_back({HeadShapeText(shape),
                     [shape](const Side& side, Operands& operands) { RunHeadForward(side, operands, shape); },
                     shape.is_large()});
  }
  return cases;
}

std::vector<Case> HeadBackwardCases(const CheckShape&) {
  std::vector<Case> cases;
  for (const HeadShape& shape : kHeadShapes) {
    cases.push_back({HeadShapeText(shape),
                     [shape](const Side& side, Operands& operands) { RunHeadBackward(side, operands, shape); },
                     shape.is_large()});
  }
  return cases;
}

std::vector<Case> AddWeightGradientCases(const CheckShape&) {
  std::vector<Case> cases;
  for (const ProductShape& shape : kProductShapes) {
    for (const bool of_logits : {false, true}) {
      cases.push_back(
          {HeadShapeText(shape) + (of_logits ? " of logits" : ""),
           [=](const Side& side, Operands& operands) { RunAddWeightGradient(side, operands, shape, of_logits); }});
    }
  }
  return cases;
}

std::vector<Case> LogitsCases(const CheckShape&) {
  std::vector<Case> cases;
  for (const ProductShape& shape : kProductShapes) {
    cases.push_back({HeadShapeText(shape), [shape](const Side& side, Operands& operands) {
                       const at::Tensor hidden = operands.Normal({shape.rows, shape.in}, Numbers::kRun);
                       const at::Tensor weight = operands.Normal({shape.out, shape.in}, Numbers::kRun);
                       const at::Tensor logits = operands.Written("logits_TV", {shape.rows, shape.out}, Numbers::kAcc,
                                                                  Layout::kInOrder, side.logits_row_quantum);
                       side.kernels.logits({.hidden_TD = hidden, .weight_VD = weight, .logits_TV = logits});
                     }});
  }
  return cases;
}

std::vector<Case> LogitsBackwardCases(const CheckShape&) {
  std::vector<Case> cases;
  for (const ProductShape& shape : kProductShapes) {
    cases.push_back({HeadShapeText(shape), [shape](const Side& side, Operands& operands) {
                       const at::Tensor dlogits = GivenDlogits(side, operands, shape);
                       const at::Tensor weight = operands.Normal({shape.out, shape.in}, Numbers::kRun);
                       const at::Tensor dhidden = operands.Written("dhidden_TD", {shape.rows, shape.in}, Numbers::kRun);
                       side.kernels.logits_backward(
                           {.dlogits_TV = dlogits, .weight_VD = weight, .dhidden_TD = dhidden});
                     }});
  }
  return cases;
}

std::vector<Case> VectorNormCases(const CheckShape&) {
  std::vector<Case> cases;
  for (const int64_t count :
       {int64_t{1}, int64_t{1003}, int64_t{4096}, int64_t{100000}, int64_t{100001}, kLargeCount}) {
    for (const double scale : {1.0, 1e25}) {  // whose squares fp32 does not hold
      for (const Numbers numbers : {Numbers::kRun, Numbers::kAcc}) {
        cases.push_back({absl::StrCat(count, " numbers of about ", scale),
                         [=](const Side& side, Operands& operands) {
                           const at::Tensor values = operands.Normal({count}, numbers, scale);
                           side.kernels.vector_norm({values, operands.Written("norm", {1}, Numbers::kRows)[0]});
                         },
                         count == kLargeCount});
      }
    }
  }
  return cases;
}

std::vector<Case> FirstNonfiniteCases(const CheckShape&) {
  std::vector<Case> cases;
  const std::vector<BadNumbers> all = {{1, {}},
                                       {1, {0}},
                                       {1003, {}},
                                       {1003, {1002}},
                                       {4096, {37}},
                                       {100001, {100000}},
                                       {100001, {70000, 90001}},
                                       {257, {5, 256}},
                                       {100000, {99999}},
                                       {kLargeCount, {}},
                                       {kLargeCount, {777777, kLargeCount - 1}}};
  for (const BadNumbers& bad : all) {
    for (const Numbers numbers : {Numbers::kRun, Numbers::kAcc}) {
      cases.push_back({absl::StrCat(bad.count, " numbers, ", bad.at.size(), " not finite"),
                       [=](const Side& side, Operands& operands) { RunFirstNonfinite(side, operands, bad, numbers); },
                       bad.count == kLargeCount});
    }
  }
  return cases;
}

}  // namespace stemma::worker::self_check
