// Norm, SwiGLU, heads and embedding.
#include <ATen/ATen.h>

#include <set>

#include "absl/strings/str_cat.h"
#include "worker/backend/self_check/cases.h"

namespace stemma::worker::self_check {
namespace {

constexpr double kEps = 1e-6;

struct RowShape {
  int64_t rows, width;

  bool is_large() const { return rows > 1000; }
};

// Whole vectors and tails; rows at aligned and at odd addresses; one row; rows of several tiles, and wider than a block
// keeps; more rows than a device's grid has blocks, which then take several in turns.
constexpr RowShape kRowShapes[] = {{1, 64},   {5, 33},    {3, 4096},  {129, 256}, {2, 130},
                                   {9, 1027}, {3, 14336}, {2, 16384}, {6400, 64}};

std::string RowShapeText(const RowShape& shape) { return absl::StrCat("[", shape.rows, ", ", shape.width, "]"); }

// x whose mean square is about eps, so that the norm depends on it, with one row of zeros.
at::Tensor SmallRows(const RowShape& shape, Operands& operands) {
  at::Tensor x = operands.Draw({shape.rows, shape.width}) * 1e-3;
  x.select(0, 0).zero_();
  return x;
}

at::Tensor Rstd(const at::Tensor& x) { return x.square().mean(-1).add(kEps).rsqrt(); }

void RunRmsNormForward(const Side& side, Operands& operands, const RowShape& shape, const at::Tensor& x_values) {
  const at::Tensor x = operands.Given(x_values, Numbers::kRun), weight = operands.Normal({shape.width}, Numbers::kRun);
  const at::Tensor y = operands.Written("y_TD", {shape.rows, shape.width}, Numbers::kRun);
  const at::Tensor rstd = operands.Written("rstd_T", {shape.rows}, Numbers::kAcc);
  side.kernels.rms_norm_forward({.x_TD = x, .weight_D = weight, .y_TD = y, .rstd_T = rstd, .eps = kEps});
}

void RunRmsNormBackward(const Side& side, Operands& operands, const RowShape& shape, const at::Tensor& x_values,
                        bool with_residual) {
  const at::Tensor x = operands.Given(x_values, Numbers::kRun), weight = operands.Normal({shape.width}, Numbers::kRun);
  const at::Tensor rstd = operands.Given(Rstd(x_values), Numbers::kAcc);
  const at::Tensor dy = operands.Normal({shape.rows, shape.width}, Numbers::kRun);
  const at::Tensor residual = with_residual ? operands.Normal({shape.rows, shape.width}, Numbers::kRun) : at::Tensor();
  const at::Tensor dx = operands.Written("dx_TD", {shape.rows, shape.width}, Numbers::kRun);
  const at::Tensor dweight = operands.AddedTo("dweight_D", {shape.width}, Numbers::kAcc);
  side.kernels.rms_norm_backward({.dy_TD = dy,
                                  .x_TD = x,
                                  .rstd_T = rstd,
                                  .weight_D = weight,
                                  .residual_TD = residual,
                                  .dx_TD = dx,
                                  .dweight_D = dweight});
}

// One call of a fused QKV product.
struct QkvCase {
  int64_t rows, heads, kv_heads, head_size;
  bool norm = false;
  Numbers kv_gradients = Numbers::kRun;  // K's come in either dtype
  double scale = 1;                      // of the product; 1e-3: its mean square is about eps
  bool is_large = false;
};
constexpr int64_t kPositions = 301;

std::string RowShapeText(const QkvCase& c) {
  return absl::StrCat(c.rows, " rows, ", c.heads, "/", c.kv_heads, " heads of ", c.head_size,
                      c.norm ? ", with norm" : "", c.scale < 1 ? ", of the size of eps" : "");
}

// The model's heads with and without a norm; a last layer's K and V alone; other sizes and groups.
std::vector<QkvCase> QkvShapes(const CheckShape& shape) {
  const int64_t h = shape.num_heads, k = shape.num_kv_heads, e = shape.head_size;
  std::vector<QkvCase> cases = {{37, h, k, e, false, Numbers::kRun}, {5, h, k, e, true, Numbers::kAcc},
                                {1, h, k, e, true, Numbers::kRun},   {19, 0, k, e, true, Numbers::kAcc},
                                {8, 0, k, e, false, Numbers::kRun},  {6, h, k, e, true, Numbers::kRun, 1e-3}};
  for (const int64_t size : std::set<int64_t>{64, 128}) {
    cases.push_back({33, 6, 2, size, true, Numbers::kAcc});
    cases.push_back({7, 3, 3, size, false, Numbers::kAcc});
  }
  // More rows of heads than a device's grid has tiles.
  for (const bool norm : {false, true}) cases.push_back({20000, 6, 2, 8, norm, Numbers::kRun, 1, /*is_large=*/true});
  return cases;
}

struct RopeOperands {
  at::Tensor positions, cos, sin;
};

RopeOperands DrawRope(Operands& operands, const QkvCase& c) {
  const at::Tensor positions = operands.DrawIntegers(kPositions, c.rows);
  positions[0] = kPositions - 1;
  const at::Tensor angles = operands.Draw({kPositions, c.head_size / 2}) * 3;
  return {operands.GivenIntegers(positions), operands.Given(angles.cos(), Numbers::kAcc),
          operands.Given(angles.sin(), Numbers::kAcc)};
}

struct NormWeights {
  at::Tensor q, k;  // undefined: none
};

NormWeights DrawWeights(Operands& operands, const QkvCase& c) {
  NormWeights weights;
  if (c.norm && c.heads > 0) weights.q = operands.Normal({c.head_size}, Numbers::kRun);
  if (c.norm) weights.k = operands.Normal({c.head_size}, Numbers::kRun);
  return weights;
}

void RunQkvForward(const Side& side, Operands& operands, const QkvCase& c) {
  const at::Tensor qkv = operands.Normal({c.rows, (c.heads + 2 * c.kv_heads) * c.head_size}, Numbers::kRun, c.scale);
  const RopeOperands rope = DrawRope(operands, c);
  const NormWeights weights = DrawWeights(operands, c);
  at::Tensor q, rstd;
  if (c.heads > 0) {
    q = operands.Written("q_HTE", {c.heads, c.rows, c.head_size}, Numbers::kRun, side.queries_layout());
  }
  const at::Tensor k = operands.Written("k_TKE", {c.rows, c.kv_heads, c.head_size}, Numbers::kRun);
  const at::Tensor v = operands.Written("v_TKE", {c.rows, c.kv_heads, c.head_size}, Numbers::kRun);
  if (c.norm) rstd = operands.Written("rstd_TJ", {c.rows, c.heads + c.kv_heads}, Numbers::kAcc);
  side.kernels.qkv_forward({.qkv_TJ = qkv,
                            .positions_T = rope.positions,
                            .cos_PE = rope.cos,
                            .sin_PE = rope.sin,
                            .q_weight_E = weights.q,
                            .k_weight_E = weights.k,
                            .eps = kEps,
                            .q_HTE = q,
                            .k_TKE = k,
                            .v_TKE = v,
                            .rstd_TJ = rstd});
}

void RunQkvBackward(const Side& side, Operands& operands, const QkvCase& c) {
  const int64_t columns = (c.heads + 2 * c.kv_heads) * c.head_size;
  const RopeOperands rope = DrawRope(operands, c);
  const NormWeights weights = DrawWeights(operands, c);
  at::Tensor dq, qkv, rstd, dq_weight, dk_weight;
  if (c.heads > 0) {
    dq = operands.Normal({c.heads, c.rows, c.head_size}, Numbers::kRun, 1, side.queries_layout());
  }
  const at::Tensor dk = operands.Normal({c.rows, c.kv_heads, c.head_size}, c.kv_gradients);
  const at::Tensor dv = operands.Normal({c.rows, c.kv_heads, c.head_size}, c.kv_gradients);
  if (c.norm) {
    const at::Tensor values = operands.Draw({c.rows, columns}) * c.scale;
    const int64_t normed = c.heads + c.kv_heads;
    qkv = operands.Given(values, Numbers::kRun);
    rstd = operands.Given(Rstd(values.narrow(1, 0, normed * c.head_size).unflatten(1, {normed, c.head_size})),
                          Numbers::kAcc);
    if (c.heads > 0) dq_weight = operands.AddedTo("dq_weight_E", {c.head_size}, Numbers::kAcc);
    dk_weight = operands.AddedTo("dk_weight_E", {c.head_size}, Numbers::kAcc);
  }
  const at::Tensor dqkv = operands.Written("dqkv_TJ", {c.rows, columns}, Numbers::kRun);
  side.kernels.qkv_backward({.dq_HTE = dq,
                             .dk_TKE = dk,
                             .dv_TKE = dv,
                             .positions_T = rope.positions,
                             .cos_PE = rope.cos,
                             .sin_PE = rope.sin,
                             .q_weight_E = weights.q,
                             .k_weight_E = weights.k,
                             .qkv_TJ = qkv,
                             .rstd_TJ = rstd,
                             .dq_weight_E = dq_weight,
                             .dk_weight_E = dk_weight,
                             .dqkv_TJ = dqkv});
}

}  // namespace

std::vector<Case> RmsNormForwardCases(const CheckShape&) {
  std::vector<Case> cases;
  for (const RowShape& shape : kRowShapes) {
    cases.push_back({RowShapeText(shape),
                     [shape](const Side& side, Operands& operands) {
                       RunRmsNormForward(side, operands, shape, operands.Draw({shape.rows, shape.width}));
                     },
                     shape.is_large()});
  }
  const RowShape small{6, 200};
  cases.push_back({RowShapeText(small) + " of the size of eps", [small](const Side& side, Operands& operands) {
                     RunRmsNormForward(side, operands, small, SmallRows(small, operands));
                   }});
  return cases;
}

std::vector<Case> RmsNormBackwardCases(const CheckShape&) {
  std::vector<Case> cases;
  for (const RowShape& shape : kRowShapes) {
    for (const bool residual : {false, true}) {
      cases.push_back({RowShapeText(shape) + (residual ? " with a residual" : ""),
                       [shape, residual](const Side& side, Operands& operands) {
                         const at::Tensor x = operands.Draw({shape.rows, shape.width});
                         RunRmsNormBackward(side, operands, shape, x, residual);
                       },
                       shape.is_large()});
    }
  }
  const RowShape small{6, 200};
  cases.push_back({RowShapeText(small) + " of the size of eps", [small](const Side& side, Operands& operands) {
                     RunRmsNormBackward(side, operands, small, SmallRows(small, operands), /*with_residual=*/false);
                   }});
  return cases;
}

std::vector<Case> SwigluForwardCases(const CheckShape&) {
  std::vector<Case> cases;
  for (const RowShape& shape : kRowShapes) {
    for (const double scale : {1.0, 40.0}) {
      cases.push_back({absl::StrCat(RowShapeText(shape), " of size ", scale),
                       [=](const Side& side, Operands& operands) {
                         const at::Tensor x = operands.Normal({shape.rows, 2 * shape.width}, Numbers::kRun, scale);
                         const at::Tensor y = operands.Written("y_TF", {shape.rows, shape.width}, Numbers::kRun);
                         side.kernels.swiglu_forward({.gate_up_TJ = x, .y_TF = y});
                       },
                       shape.is_large()});
    }
  }
  return cases;
}

std::vector<Case> SwigluBackwardCases(const CheckShape&) {
  std::vector<Case> cases;
  for (const RowShape& shape : kRowShapes) {
    for (const double scale : {1.0, 40.0}) {
      cases.push_back(
          {absl::StrCat(RowShapeText(shape), " of size ", scale),
           [=](const Side& side, Operands& operands) {
             const at::Tensor x = operands.Normal({shape.rows, 2 * shape.width}, Numbers::kRun, scale);
             const at::Tensor dy = operands.Normal({shape.rows, shape.width}, Numbers::kRun);
             const at::Tensor dx = operands.Written("dgate_up_TJ", {shape.rows, 2 * shape.width}, Numbers::kRun);
             side.kernels.swiglu_backward({.dy_TF = dy, .gate_up_TJ = x, .dgate_up_TJ = dx});
           },
           shape.is_large()});
    }
  }
  return cases;
}

std::vector<Case> QkvForwardCases(const CheckShape& shape) {
  std::vector<Case> cases;
  for (const QkvCase& c : QkvShapes(shape)) {
    cases.push_back(
        {RowShapeText(c), [c](const Side& side, Operands& operands) { RunQkvForward(side, operands, c); }, c.is_large});
  }
  return cases;
}

std::vector<Case> QkvBackwardCases(const CheckShape& shape) {
  std::vector<Case> cases;
  for (const QkvCase& c : QkvShapes(shape)) {
    cases.push_back({RowShapeText(c), [c](const Side& side, Operands& operands) { RunQkvBackward(side, operands, c); },
                     c.is_large});
  }
  return cases;
}

// Tokens that repeat, tokens that do not come, and rows of none.
std::vector<Case> EmbeddingBackwardCases(const CheckShape&) {
  std::vector<Case> cases;
  for (const RowShape& shape : kRowShapes) {
    for (const int64_t vocab : {3, 50}) {
      cases.push_back({absl::StrCat(RowShapeText(shape), " of ", vocab, " tokens"),
                       [=](const Side& side, Operands& operands) {
                         const at::Tensor tokens =
                             operands.GivenIntegers(operands.DrawIntegers(vocab + 1, shape.rows) - 1);
                         const at::Tensor dx = operands.Normal({shape.rows, shape.width}, Numbers::kRun);
                         const at::Tensor dweight = operands.AddedTo("dweight_VD", {vocab, shape.width}, Numbers::kAcc);
                         side.kernels.embedding_backward({.tokens_T = tokens, .dx_TD = dx, .dweight_VD = dweight});
                       },
                       shape.is_large()});
    }
  }
  return cases;
}

}  // namespace stemma::worker::self_check
