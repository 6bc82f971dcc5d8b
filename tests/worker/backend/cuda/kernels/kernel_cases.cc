#include "tests/worker/backend/cuda/kernels/kernel_cases.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "common/base/round_up.h"
#include "worker/backend/accumulate_type.h"
#include "worker/backend/composed/composed_backend.h"
#include "worker/backend/cuda/attention/composed_attention_kernels.h"

namespace stemma::testing {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// What an output may be off by, as a part of its largest element or of 1, whichever is more. bf16: both sides round
// fp32 once, on either side of a tie: one ulp, at most 2^-7 of the number. fp32: sums of some thousand terms in another
// order, and exponentials of the device: hundreds of roundings at the very worst. fp64 of logits in fp32: the same.
double Allowed(const at::Tensor& output) { return output.scalar_type() == at::kBFloat16 ? 1.0 / 128 : 2e-5; }

}  // namespace

Drawn::Drawn(uint32_t seed, const Placement& placement) : random_(seed), placement_(placement) {
  at::manual_seed(seed);
}

int64_t Drawn::Width() {
  const int64_t most = placement_.large ? 12000 : 150;
  return Coin() ? Size(1, most) : 8 * Size(1, most / 8);
}

int64_t Drawn::Rows() {
  if (placement_.no_rows) return 0;
  if (placement_.rows_apart) return 8;
  return placement_.many_rows ? Size(6200, 6500) : Size(1, placement_.large ? 600 : 12);
}

int64_t Drawn::RowsOf(int64_t heads) { return placement_.many_rows ? 200000 / heads + Size(1, 100) : Rows(); }

at::Tensor Drawn::Place(const at::Tensor& tensor) {
  const bool is_the_one = num_placed_++ == placement_.unaligned_one;
  if (!placement_.unaligned && !is_the_one) return tensor.to(placement_.device);
  const at::Tensor room = at::empty({tensor.numel() + 1}, tensor.options().device(placement_.device));
  const at::Tensor placed = room.narrow(0, 1, tensor.numel()).view(tensor.sizes());
  placed.copy_(tensor);
  return placed;
}

at::Tensor Drawn::Normal(at::IntArrayRef sizes, at::ScalarType dtype) {
  return Place(at::randn(sizes, at::kDouble).to(dtype));
}
at::Tensor Drawn::Integers(int64_t low, int64_t high, int64_t count) {
  return Place(at::randint(low, high, {count}, at::kLong));
}
at::Tensor Drawn::Ones(at::IntArrayRef sizes, at::ScalarType dtype) { return Place(at::ones(sizes, dtype)); }
at::Tensor Drawn::Unwritten(at::IntArrayRef sizes, at::ScalarType dtype) { return Place(at::full(sizes, kNan, dtype)); }

at::Tensor Drawn::Swapped(const at::Tensor& tensor) {
  const bool swaps = placement_.rows_apart ? placement_.swapped : Coin();
  const at::Tensor placed = placement_.rows_apart ? at::constant_pad_nd(tensor, {0, 1}) : tensor;
  return (swaps ? Transposed(placed) : Place(placed)).narrow(-1, 0, tensor.size(-1));
}

at::Tensor Drawn::Transposed(const at::Tensor& tensor) {
  return Place(tensor.transpose(0, 1).contiguous().cpu()).transpose(0, 1);
}

Outputs RmsNormCase(const Tables& tables, at::ScalarType dtype, Drawn drawn) {
  const int64_t rows = drawn.Rows(), width = drawn.Width();
  const at::Tensor x = drawn.Normal({rows, width}, dtype), weight = drawn.Normal({width}, dtype);
  const at::Tensor y = drawn.Unwritten({rows, width}, dtype), rstd = drawn.Unwritten({rows}, AccType(dtype));
  tables.kernels.rms_norm_forward({.x_TD = x, .weight_D = weight, .y_TD = y, .rstd_T = rstd, .eps = 1e-6});
  const at::Tensor dy = drawn.Normal({rows, width}, dtype), dx = drawn.Unwritten({rows, width}, dtype);
  const at::Tensor residual = drawn.Coin() ? drawn.Normal({rows, width}, dtype) : at::Tensor();
  const at::Tensor dweight = drawn.Ones({width}, AccType(dtype));
  tables.kernels.rms_norm_backward({.dy_TD = dy,
                                    .x_TD = x,
                                    .rstd_T = rstd,
                                    .weight_D = weight,
                                    .residual_TD = residual,
                                    .dx_TD = dx,
                                    .dweight_D = dweight});
  return {y, rstd, dx, dweight};
}

Outputs SwigluCase(const Tables& tables, at::ScalarType dtype, Drawn drawn) {
  const int64_t rows = drawn.Rows(), width = drawn.Width();
  const at::Tensor x = drawn.Normal({rows, 2 * width}, dtype), y = drawn.Unwritten({rows, width}, dtype);
  if (rows > 0) x.view({-1})[0] = -90;  // e^90 is more than a float holds
  tables.kernels.swiglu_forward({.gate_up_TJ = x, .y_TF = y});
  const at::Tensor dy = drawn.Normal({rows, width}, dtype), dx = drawn.Unwritten({rows, 2 * width}, dtype);
  tables.kernels.swiglu_backward({.dy_TF = dy, .gate_up_TJ = x, .dgate_up_TJ = dx});
  return {y, dx};
}

namespace {

// The operands that both directions of a fused product share.
struct QkvOperands {
  QkvOperands(at::ScalarType dtype, Drawn& drawn)
      : kv_heads(drawn.Size(1, 3)),
        heads(drawn.Coin() ? kv_heads * drawn.Size(1, 3) : 0),
        rows(drawn.RowsOf(heads + 2 * kv_heads)),
        size(drawn.HeadSize(drawn.Coin() ? 16 * drawn.Size(1, 16) : 2 * drawn.Size(1, 70))),
        norm(drawn.Coin()),
        qkv(drawn.Normal({rows, (heads + 2 * kv_heads) * size}, dtype)),
        at_position(drawn.Integers(0, kPositions, rows)) {
    const at::Tensor angle = at::randn({kPositions, size / 2}, at::kDouble);
    cos = drawn.Place(angle.cos().to(AccType(dtype)));
    sin = drawn.Place(angle.sin().to(AccType(dtype)));
    if (norm && heads > 0) q_weight = drawn.Normal({size}, dtype);
    if (norm) k_weight = drawn.Normal({size}, dtype);
  }
  static constexpr int64_t kPositions = 50;
  int64_t kv_heads, heads, rows, size;
  bool norm;
  at::Tensor qkv, at_position, cos, sin, q_weight, k_weight;
};

}  // namespace

Outputs QkvForwardCase(const Tables& tables, at::ScalarType dtype, Drawn drawn) {
  const QkvOperands in(dtype, drawn);
  const at::Tensor q = drawn.Swapped(drawn.Unwritten({in.heads, in.rows, in.size}, dtype)), none;
  const at::Tensor k = drawn.Unwritten({in.rows, in.kv_heads, in.size}, dtype);
  const at::Tensor v = drawn.Unwritten({in.rows, in.kv_heads, in.size}, dtype);
  const at::Tensor rstd = drawn.Unwritten({in.rows, in.heads + in.kv_heads}, AccType(dtype));
  tables.kernels.qkv_forward({.qkv_TJ = in.qkv,
                              .positions_T = in.at_position,
                              .cos_PE = in.cos,
                              .sin_PE = in.sin,
                              .q_weight_E = in.q_weight,
                              .k_weight_E = in.k_weight,
                              .eps = 1e-6,
                              .q_HTE = in.heads > 0 ? q : none,
                              .k_TKE = k,
                              .v_TKE = v,
                              .rstd_TJ = in.norm ? rstd : none});
  Outputs outputs = {k, v};
  if (in.heads > 0) outputs.push_back(q);
  if (in.norm) outputs.push_back(rstd);
  return outputs;
}

Outputs QkvBackwardCase(const Tables& tables, at::ScalarType dtype, Drawn drawn) {
  const QkvOperands in(dtype, drawn);
  const at::ScalarType acc = AccType(dtype), grad = drawn.Coin() ? acc : dtype;
  const at::Tensor dq = drawn.Swapped(drawn.Normal({in.heads, in.rows, in.size}, dtype)), none;
  const at::Tensor dk = drawn.Swapped(drawn.Normal({in.rows, in.kv_heads, in.size}, grad));
  const at::Tensor dv = drawn.Swapped(drawn.Normal({in.rows, in.kv_heads, in.size}, grad));
  const at::Tensor rstd = drawn.Place(at::rand({in.rows, in.heads + in.kv_heads}, acc).add(0.5));
  const at::Tensor dq_weight = drawn.Ones({in.size}, acc), dk_weight = drawn.Ones({in.size}, acc);
  const at::Tensor dqkv = drawn.Unwritten(in.qkv.sizes(), dtype);
  tables.kernels.qkv_backward({.dq_HTE = in.heads > 0 ? dq : none,
                               .dk_TKE = dk,
                               .dv_TKE = dv,
                               .positions_T = in.at_position,
                               .cos_PE = in.cos,
                               .sin_PE = in.sin,
                               .q_weight_E = in.q_weight,
                               .k_weight_E = in.k_weight,
                               .qkv_TJ = in.norm ? in.qkv : none,
                               .rstd_TJ = in.norm ? rstd : none,
                               .dq_weight_E = dq_weight,
                               .dk_weight_E = dk_weight,
                               .dqkv_TJ = dqkv});
  return {dqkv, dq_weight, dk_weight};
}

Outputs EmbeddingCase(const Tables& tables, at::ScalarType dtype, Drawn drawn) {
  const int64_t rows = 4 * drawn.Rows(), width = drawn.Width(), vocab = 7;  // tokens repeat, or are none
  const at::Tensor tokens = drawn.Integers(-1, vocab, rows), dx = drawn.Normal({rows, width}, dtype);
  const at::Tensor dweight = drawn.Ones({vocab, width}, AccType(dtype));
  tables.kernels.embedding_backward({.tokens_T = tokens, .dx_TD = dx, .dweight_VD = dweight});
  return {dweight};
}

// Draws a target for each row, among them none, and the last token, which is behind the whole packs of an odd
// vocabulary.
at::Tensor Drawn::Targets(int64_t vocab, int64_t rows) {
  const at::Tensor targets = Integers(-1, vocab, rows);
  if (rows > 0) targets[0] = -1;
  if (rows > 1) targets[rows - 1] = vocab - 1;
  return targets;
}

namespace {

// Rows of logits. Those of an odd vocabulary are as a head holds them: each a multiple of 8 elements behind the one
// before, with NaN between.
struct DrawnLogits {
  DrawnLogits(Drawn& drawn, int64_t rows, int64_t vocab, double scale) {
    const int64_t row = vocab % 2 == 1 ? RoundUp<int64_t>(vocab, 8) : vocab;
    const at::Tensor memory = drawn.Unwritten({rows, row}, at::kFloat);
    logits = memory.narrow(1, 0, vocab);
    between = memory.narrow(1, vocab, row - vocab);
    logits.copy_(drawn.Normal({rows, vocab}, at::kFloat).mul_(scale));
  }
  // 1 for each element between the rows that was not written.
  at::Tensor untouched() const { return between.isnan().to(at::kFloat); }

  at::Tensor logits, between;
};

}  // namespace

Outputs HeadForwardCase(const Tables& tables, at::ScalarType, Drawn drawn) {
  const int64_t rows = drawn.Rows(), vocab = 5 * drawn.Width();
  const at::Tensor logits = DrawnLogits(drawn, rows, vocab, /*scale=*/5).logits, none;
  const at::Tensor targets = drawn.Targets(vocab, rows), softmax = drawn.Unwritten({rows, 2}, at::kDouble);
  const at::Tensor log_prob = drawn.Unwritten({rows}, at::kDouble), entropy = drawn.Unwritten({rows}, at::kDouble);
  const bool with_entropy = drawn.Coin();
  tables.kernels.head_forward({.logits_TV = logits,
                               .targets_T = targets,
                               .softmax_T2 = softmax,
                               .log_prob_T = log_prob,
                               .entropy_T = with_entropy ? entropy : none,
                               .inverse_temperature = 1.25});
  return with_entropy ? Outputs{softmax, log_prob, entropy} : Outputs{softmax, log_prob};
}

// The statistics are drawn, so that a wrong forward stays out: max and log Σ of rows that are nearly those.
Outputs HeadBackwardCase(const Tables& tables, at::ScalarType dtype, Drawn drawn) {
  const int64_t rows = drawn.Rows(), vocab = 5 * drawn.Width();
  const DrawnLogits given(drawn, rows, vocab, /*scale=*/1);
  const at::Tensor &logits = given.logits, none;
  const at::Tensor max = logits.amax(-1).to(at::kDouble);
  const at::Tensor log_sum = logits.to(at::kDouble).sub(max.unsqueeze(1)).exp().sum(-1).log();
  const at::Tensor softmax = drawn.Place(at::stack({max, log_sum}, 1));
  const at::Tensor targets = drawn.Targets(vocab, rows), entropy = drawn.Normal({rows}, at::kDouble);
  const at::Tensor g = drawn.Normal({rows}, at::kDouble), h = drawn.Normal({rows}, at::kDouble);
  if (rows > 0) g[0] = 0, h[0] = 0, logits[0][0] = kNan;  // not read
  if (rows > 1) g[1] = 0;
  if (rows > 2) h[2] = 0;
  const bool with_entropy = drawn.Coin();
  const at::Tensor dlogits = dtype == at::kFloat ? logits : logits.view(dtype).narrow(1, 0, vocab);
  tables.kernels.head_backward({.logits_TV = logits,
                                .dlogits_TV = dlogits,
                                .targets_T = targets,
                                .softmax_T2 = softmax,
                                .dlog_prob_T = g,
                                .entropy_T = with_entropy ? entropy : none,
                                .dentropy_T = with_entropy ? h : none,
                                .inverse_temperature = 1.25});
  return {dlogits, given.untouched()};
}

Outputs VectorNormCase(const Tables& tables, at::ScalarType dtype, Drawn drawn) {
  const int64_t count = drawn.Width() * (1 + drawn.Rows());
  const at::Tensor values = drawn.Normal({count}, dtype).mul_(drawn.Coin() ? 1e25 : 1);  // squares beyond fp32
  const at::Tensor norm = drawn.Unwritten({}, at::kDouble);
  tables.kernels.vector_norm({values, norm});
  return {norm / (values.to(at::kDouble).abs().amax() + 1e-30)};
}

Outputs NonfiniteCase(const Tables& tables, at::ScalarType dtype, Drawn drawn) {
  const int64_t count = drawn.Width() * drawn.Rows();
  const at::Tensor values = drawn.Normal({count}, dtype);
  std::vector<int64_t> found;
  const auto find = [&] {
    const at::Tensor index = drawn.Place(at::full({1}, -2, at::kLong))[0];
    tables.kernels.first_nonfinite({values, index});
    found.push_back(index.item<int64_t>());
  };
  find();
  for (const double bad : std::initializer_list<double>{INFINITY, -INFINITY, kNan}) {
    if (count > 0) values[drawn.Size(0, count - 1)] = bad;
    find();
  }
  return {at::tensor(found, at::kLong)};
}

// Parts of a matrix: all of it, its rows from one on, and what begins and ends inside of rows, also with a whole pack.
// The sums' bits in four numbers each, which fp64 holds.
Outputs WordSumCase(const Tables& tables, at::ScalarType dtype, Drawn drawn) {
  const int64_t columns = drawn.Width(), rows = drawn.Rows(), all = rows * columns;
  const int64_t row = drawn.Size(rows / 2, rows - 1) * columns, inside = drawn.Size(0, all - 1);
  const int64_t packs = inside / 8 * 8;
  const int64_t row_begin = drawn.Size(0, 1000), column_begin = drawn.Size(0, 1000);
  std::vector<int64_t> words;
  for (const auto& [first, count] : std::vector<std::pair<int64_t, int64_t>>{
           {0, all}, {row, all - row}, {inside, drawn.Size(1, all - inside)}, {packs, drawn.Size(1, all - packs)}}) {
    const at::Tensor values = drawn.Normal({count}, dtype);
    const at::Tensor sum = drawn.Place(at::full({1}, -1, at::kLong))[0];
    tables.kernels.word_sum({.values = values,
                             .first = first,
                             .columns = columns,
                             .row_begin = row_begin,
                             .column_begin = column_begin,
                             .sum = sum});
    for (const int shift : {0, 16, 32, 48}) words.push_back(sum.item<int64_t>() >> shift & 0xffff);
  }
  return {at::tensor(words, at::kLong)};
}

Outputs MergeCase(const Tables& tables, at::ScalarType dtype, Drawn drawn) {
  const int64_t heads = drawn.Size(1, 6), rows = drawn.RowsOf(heads);
  const int64_t size = drawn.HeadSize(drawn.Coin() ? 8 * drawn.Size(1, 17) : drawn.Size(1, 130));
  const at::ScalarType acc = AccType(dtype);
  const at::Tensor a = drawn.Swapped(drawn.Normal({rows, heads, size}, dtype));
  const at::Tensor b = drawn.Swapped(drawn.Normal({rows, heads, size}, dtype));
  const at::Tensor lse_a = drawn.Swapped(drawn.Normal({heads, rows}, acc).mul_(3));
  const at::Tensor lse_b = drawn.Swapped(drawn.Normal({heads, rows}, acc).mul_(3));
  if (rows > 0) lse_a[0][0] = 500, lse_b[heads - 1][rows - 1] = 700;  // one part's weight vanishes
  const at::Tensor o = drawn.Swapped(drawn.Unwritten({rows, heads, size}, dtype));
  const at::Tensor lse = drawn.Swapped(drawn.Unwritten({heads, rows}, acc));
  tables.attention.merge({.a_THE = a, .b_THE = b, .lse_a_HT = lse_a, .lse_b_HT = lse_b, .o_THE = o, .lse_HT = lse});
  return {o, lse};
}

Outputs AddPartsCase(const Tables& tables, at::ScalarType dtype, Drawn drawn) {
  const int64_t heads = drawn.Size(1, 4), rows = drawn.RowsOf(heads), parts = drawn.Size(1, 5);
  const int64_t size = drawn.HeadSize(drawn.Coin() ? 8 * drawn.Size(1, 17) : drawn.Size(1, 130));
  const at::Tensor of_calls = drawn.Swapped(drawn.Normal({parts, rows, heads, size}, dtype));
  const at::Tensor sum = drawn.Swapped(drawn.Normal({rows, heads, size}, AccType(dtype)));
  tables.attention.add_parts({.parts_NCKE = of_calls, .sum_CKE = sum});
  return {sum};
}

double WorstError(const Outputs& actual, const Outputs& expected) {
  double worst = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const at::Tensor a = actual[i].cpu().to(at::kDouble), b = expected[i].cpu().to(at::kDouble);
    if (b.numel() == 0) continue;
    const double scale = std::max(b.abs().max().item<double>(), 1.0);
    const double error = (a - b).abs().max().item<double>() / scale / Allowed(expected[i]);
    worst = std::isnan(error) ? INFINITY : std::max(worst, error);
  }
  return worst;
}

Tables ComposedTables() { return {ComposedKernels(), worker::cuda::ComposedAttentionKernels()}; }

}  // namespace stemma::testing
