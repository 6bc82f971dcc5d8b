// Each entry of the kernel table by itself, at the sizes of a layer: seconds, the bytes that its header says it must
// move, and their rate beside that of a copy inside the device.
#include <ATen/ATen.h>

#include <functional>
#include <string>

#include "tests/gpu/bench/parts.h"
#include "tests/gpu/bench/shapes.h"

namespace stemma::testing {
namespace {

using nlohmann::json;

class KernelTable {
 public:
  explicit KernelTable(BenchRun& run)
      : run_(run),
        model_(LlamaConfig(run.options().tiny)),
        backend_(run.MakeBackend(model_)),
        rows_(run.options().tiny ? 48 : 8192),
        head_rows_(run.options().tiny ? 16 : 2048) {}

  void Measure() {
    RmsNorm();
    Swiglu();
    Qkv();
    Embedding();
    Head();
    // The tokens of a wave, which a launch takes longer than; and as many as show the kernel itself.
    Loss(run_.options().tiny ? 64 : 65536);
    if (!run_.options().tiny) Loss(int64_t{1} << 22);
    WholeGradients();
  }

 private:
  at::Tensor Bf16(at::IntArrayRef sizes) const { return at::randn(sizes, backend_.options(at::kBFloat16)); }
  at::Tensor Fp32(at::IntArrayRef sizes) const { return at::randn(sizes, backend_.options(at::kFloat)); }
  at::Tensor Fp64(int64_t rows) const { return at::randn({rows}, backend_.options(at::kDouble)); }
  at::Tensor Integers(int64_t high, int64_t rows) const {
    return at::randint(high, {rows}, backend_.options(at::kLong));
  }

  // `bytes` are those of the formula in the kernel's header.
  void Row(const std::string& kernel, int64_t rows, int64_t bytes, const std::function<void()>& call) {
    run_.Row("kernels", {{"kernel", kernel}, {"rows", rows}}, [&](json& row) {
      const Spread spread = run_.Time(backend_, call);
      row["seconds"] = spread.Json();
      row["bytes"] = bytes;
      row["bytes_per_s"] = static_cast<double>(bytes) / spread.median();
      return absl::OkStatus();
    });
  }

  void RmsNorm() {
    const int64_t d = model_.hidden_size;
    const at::Tensor x = Bf16({rows_, d}), weight = Bf16({d}), y = at::empty_like(x), rstd = Fp32({rows_}).abs();
    Row("rms_norm_forward", rows_, rows_ * (2 * d * 2 + 4), [&] {
      backend_.kernels.rms_norm_forward({x, weight, y, rstd, 1e-5});
    });
    const at::Tensor dy = Bf16({rows_, d}), residual = Bf16({rows_, d}), dx = at::empty_like(x), dweight = Fp32({d});
    Row("rms_norm_backward", rows_, rows_ * (4 * d * 2 + 4), [&] {
      backend_.kernels.rms_norm_backward({dy, x, rstd, weight, residual, dx, dweight});
    });
  }

  void Swiglu() {
    const int64_t f = model_.ffn_size;
    const at::Tensor gate_up = Bf16({rows_, 2 * f}), y = Bf16({rows_, f}), dgate_up = at::empty_like(gate_up);
    Row("swiglu_forward", rows_, rows_ * 3 * f * 2, [&] { backend_.kernels.swiglu_forward({gate_up, y}); });
    Row("swiglu_backward", rows_, rows_ * 5 * f * 2, [&] { backend_.kernels.swiglu_backward({y, gate_up, dgate_up}); });
  }

  void Qkv() {
    const int64_t h = model_.num_heads, k = model_.num_kv_heads, e = model_.head_size, j = (h + 2 * k) * e;
    const at::Tensor qkv = Bf16({rows_, j}), positions = Integers(rows_, rows_), cos = Fp32({rows_, e / 2}),
                     sin = Fp32({rows_, e / 2}), none;
    const at::Tensor q_THE = Bf16({rows_, h, e}), k_TKE = Bf16({rows_, k, e}), v_TKE = Bf16({rows_, k, e}),
                     dqkv = at::empty_like(qkv);
    const at::Tensor q_HTE = backend_.queries_by_token ? q_THE.transpose(0, 1) : q_THE.transpose(0, 1).contiguous();
    const at::Tensor q_weight = Bf16({e}), k_weight = Bf16({e}), rstd = Fp32({rows_, h + k}).abs();
    Row("qkv_forward", rows_, rows_ * 2 * j * 2, [&] {
      backend_.kernels.qkv_forward({qkv, positions, cos, sin, none, none, 1e-6, q_HTE, k_TKE, v_TKE, none});
    });
    Row("qkv_forward, QK-norm", rows_, rows_ * (2 * j * 2 + 4 * (h + k)), [&] {
      backend_.kernels.qkv_forward({qkv, positions, cos, sin, q_weight, k_weight, 1e-6, q_HTE, k_TKE, v_TKE, rstd});
    });
    Row("qkv_backward", rows_, rows_ * 2 * j * 2, [&] {
      backend_.kernels.qkv_backward(
          {q_HTE, k_TKE, v_TKE, positions, cos, sin, none, none, none, none, none, none, dqkv});
    });
    const at::Tensor dq_weight = Fp32({e}), dk_weight = Fp32({e});
    Row("qkv_backward, QK-norm", rows_, rows_ * (2 * j * 2 + (h + k) * e * 2 + 4 * (h + k)), [&] {
      backend_.kernels.qkv_backward(
          {q_HTE, k_TKE, v_TKE, positions, cos, sin, q_weight, k_weight, qkv, rstd, dq_weight, dk_weight, dqkv});
    });
  }

  void Embedding() {
    const int64_t vocab = model_.vocab_size;
    const at::TensorOptions ints = backend_.options(at::kLong);
    EmbeddingBackward("embedding_backward", at::randperm(vocab, ints).slice(0, 0, rows_));
    // By Zipf's law: the most frequent token has every twelfth row or so, as a text's has.
    const at::Tensor odds = at::arange(1, vocab + 1, backend_.options(at::kFloat)).reciprocal();
    EmbeddingBackward("embedding_backward, tokens as a text has them", at::multinomial(odds, rows_, true));
  }

  void EmbeddingBackward(const std::string& name, const at::Tensor& tokens) {
    const int64_t d = model_.hidden_size, distinct = std::get<0>(at::_unique(tokens)).numel();
    const at::Tensor dx = Bf16({rows_, d}), dweight = Fp32({model_.vocab_size, d});
    Row(name, rows_, rows_ * d * 2 + distinct * 8 * d, [&] {
      backend_.kernels.embedding_backward({tokens, dx, dweight});
    });
  }

  void Head() {
    const int64_t v = model_.vocab_size, rows = head_rows_;
    const at::Tensor logits = Fp32({rows, v}), targets = Integers(v, rows), log_prob = Fp64(rows), none,
                     softmax = at::zeros({rows, 2}, backend_.options(at::kDouble)), dlog_prob = Fp64(rows);
    Row("head_forward", rows, rows * 4 * v, [&] {
      backend_.kernels.head_forward({logits, targets, softmax, log_prob, none, 1});
    });
    const bool narrow = backend_.dlogits_in_run_dtype;
    const at::Tensor dlogits = narrow ? logits.view(at::kBFloat16).slice(1, 0, v) : logits;
    // The first call turns the logits into gradients; later ones read what those bytes are as numbers, at no other
    // speed.
    Row("head_backward", rows, rows * (narrow ? 6 : 8) * v, [&] {
      backend_.kernels.head_backward({logits, dlogits, targets, softmax, dlog_prob, none, none, 1});
    });
  }

  void Loss(int64_t rows) {
    LossRows of_rows;
    of_rows.old_log_prob_T = Fp64(rows);
    of_rows.advantage_T = Fp64(rows);
    of_rows.weight_T = Fp64(rows).abs();
    of_rows.mask_T = at::ones({rows}, backend_.options(at::kDouble));
    const LossOptions options = {.mode = LossMode::kVanilla, .clip_low = 0.2, .clip_high = 0.2};
    const at::Tensor log_prob = Fp64(rows), dlog_prob = Fp64(rows), none,
                     sums = at::zeros({kNumLossSums}, backend_.options(at::kDouble));
    Row("loss", rows, rows * 6 * 8, [&] {
      backend_.kernels.loss({options, of_rows, log_prob, none, dlog_prob, none, sums});
    });
  }

  void WholeGradients() {
    const at::Tensor values = Fp32({model_.hidden_size * 2 * model_.ffn_size}), norm = Fp64(1)[0];
    Row("vector_norm", model_.hidden_size, values.numel() * 4, [&] { backend_.kernels.vector_norm({values, norm}); });
    const at::Tensor index = at::zeros({1}, backend_.options(at::kLong))[0];
    Row("first_nonfinite", model_.hidden_size, values.numel() * 4, [&] {
      backend_.kernels.first_nonfinite({values, index});
    });
    const at::Tensor weights = values.to(at::kBFloat16), sum = at::zeros({1}, backend_.options(at::kLong))[0];
    Row("word_sum", model_.hidden_size, weights.numel() * 2,
        [&] { backend_.kernels.word_sum({.values = weights, .columns = model_.hidden_size, .sum = sum}); });
  }

  BenchRun& run_;
  const ModelConfig model_;
  const Backend backend_;
  const int64_t rows_, head_rows_;
};

}  // namespace

absl::Status RunKernels(BenchRun& run) {
  KernelTable(run).Measure();
  return absl::OkStatus();
}

}  // namespace stemma::testing
