// Each entry of the kernel table, and of a split attention's, by itself, at the sizes of a layer: seconds, the bytes
// that its header says it must move, and their rate beside that of a copy inside the device.
#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/gpu/bench/parts.h"
#include "tests/gpu/bench/shapes.h"
#include "worker/backend/cuda/attention/attention_kernels.h"
#include "worker/backend/cuda/attention/composed_attention_kernels.h"

namespace stemma::testing {
namespace {

using nlohmann::json;

// How rows of a split attention's kernels begin.
constexpr std::string_view kOfAttention = "attention_";

// What a row calls, with its operands, and the bytes of the formula in the kernel's header.
struct Work {
  int64_t bytes = 0;
  std::function<void()> call;
};

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
    QkvForward(false);
    QkvForward(true);
    QkvBackward(false);
    QkvBackward(true);
    Embedding();
    Head();
    // The tokens of a wave, which a launch takes longer than; and as many as show the kernel itself.
    Loss(run_.options().tiny ? 64 : 65536);
    if (!run_.options().tiny) Loss(int64_t{1} << 22);
    WholeGradients();
    Merge();
    AddParts();
  }

 private:
  at::Tensor Bf16(at::IntArrayRef sizes) const { return at::randn(sizes, backend_.options(at::kBFloat16)); }
  at::Tensor Fp32(at::IntArrayRef sizes) const { return at::randn(sizes, backend_.options(at::kFloat)); }
  at::Tensor Fp64(int64_t rows) const { return at::randn({rows}, backend_.options(at::kDouble)); }
  at::Tensor Integers(int64_t high, int64_t rows) const {
    return at::randint(high, {rows}, backend_.options(at::kLong));
  }

  // Whether the plain operations run in the kernel's place. A row's name is the kernel's, up to a comma.
  bool IsOff(const std::string& row_name) const {
    const std::string kernel = row_name.substr(0, row_name.find(','));
    const std::vector<KernelOff>& off = backend_.kernels_off;
    if (kernel.starts_with(kOfAttention)) return backend_.attention_kernels == nullptr;
    return std::any_of(off.begin(), off.end(), [&](const KernelOff& one) { return one.kernel == kernel; });
  }

  // Operands are made within the row: where they cannot be, the row says why, and the next is tried.
  void Row(const std::string& kernel, int64_t rows, const std::function<Work()>& make) {
    run_.Row("kernels", {{"kernel", kernel}, {"rows", rows}}, [&](json& row) {
      const Work work = make();
      const Spread spread = run_.Time(backend_, work.call);
      row["seconds"] = spread.Json();
      row["bytes"] = work.bytes;
      row["bytes_per_s"] = static_cast<double>(work.bytes) / spread.median();
      if (IsOff(kernel)) row["off"] = true;
      return absl::OkStatus();
    });
  }

  void RmsNorm() {
    const int64_t d = model_.hidden_size;
    Row("rms_norm_forward", rows_, [this, d] {
      const at::Tensor x = Bf16({rows_, d}), weight = Bf16({d}), y = at::empty_like(x), rstd = Fp32({rows_}).abs();
      return Work{rows_ * (2 * d * 2 + 4), [=, this] {
                    backend_.kernels.rms_norm_forward({x, weight, y, rstd, 1e-5});
                  }};
    });
    Row("rms_norm_backward", rows_, [this, d] {
      const at::Tensor x = Bf16({rows_, d}), weight = Bf16({d}), rstd = Fp32({rows_}).abs(), dy = Bf16({rows_, d}),
                       residual = Bf16({rows_, d}), dx = at::empty_like(x), dweight = Fp32({d});
      return Work{rows_ * (4 * d * 2 + 4), [=, this] {
                    backend_.kernels.rms_norm_backward({dy, x, rstd, weight, residual, dx, dweight});
                  }};
    });
  }

  void Swiglu() {
    const int64_t f = model_.ffn_size;
    Row("swiglu_forward", rows_, [this, f] {
      const at::Tensor gate_up = Bf16({rows_, 2 * f}), y = Bf16({rows_, f});
      return Work{rows_ * 3 * f * 2, [=, this] { backend_.kernels.swiglu_forward({gate_up, y}); }};
    });
    Row("swiglu_backward", rows_, [this, f] {
      const at::Tensor gate_up = Bf16({rows_, 2 * f}), dy = Bf16({rows_, f}), dgate_up = at::empty_like(gate_up);
      return Work{rows_ * 5 * f * 2, [=, this] { backend_.kernels.swiglu_backward({dy, gate_up, dgate_up}); }};
    });
  }

  struct QkvOperands {
    at::Tensor qkv, positions, cos, sin, q_HTE, k_TKE, v_TKE, rstd;
  };
  QkvOperands MakeQkv() const {
    const int64_t h = model_.num_heads, k = model_.num_kv_heads, e = model_.head_size;
    const at::Tensor q_THE = Bf16({rows_, h, e});
    return {.qkv = Bf16({rows_, (h + 2 * k) * e}),
            .positions = Integers(rows_, rows_),
            .cos = Fp32({rows_, e / 2}),
            .sin = Fp32({rows_, e / 2}),
            .q_HTE = backend_.queries_by_token ? q_THE.transpose(0, 1) : q_THE.transpose(0, 1).contiguous(),
            .k_TKE = Bf16({rows_, k, e}),
            .v_TKE = Bf16({rows_, k, e}),
            .rstd = Fp32({rows_, h + k}).abs()};
  }

  void QkvForward(bool norm) {
    const int64_t h = model_.num_heads, k = model_.num_kv_heads, e = model_.head_size, j = (h + 2 * k) * e;
    Row(norm ? "qkv_forward, QK-norm" : "qkv_forward", rows_, [=, this] {
      const QkvOperands x = MakeQkv();
      const at::Tensor q_weight = norm ? Bf16({e}) : at::Tensor(), k_weight = norm ? Bf16({e}) : at::Tensor(),
                       rstd = norm ? x.rstd : at::Tensor();
      return Work{rows_ * (2 * j * 2 + (norm ? 4 * (h + k) : 0)), [=, this] {
                    backend_.kernels.qkv_forward(
                        {x.qkv, x.positions, x.cos, x.sin, q_weight, k_weight, 1e-6, x.q_HTE, x.k_TKE, x.v_TKE, rstd});
                  }};
    });
  }

  void QkvBackward(bool norm) {
    const int64_t h = model_.num_heads, k = model_.num_kv_heads, e = model_.head_size, j = (h + 2 * k) * e;
    Row(norm ? "qkv_backward, QK-norm" : "qkv_backward", rows_, [=, this] {
      const QkvOperands x = MakeQkv();
      const at::Tensor dqkv = at::empty_like(x.qkv), none;
      if (!norm) {
        return Work{rows_ * 2 * j * 2, [=, this] {
                      backend_.kernels.qkv_backward({x.q_HTE, x.k_TKE, x.v_TKE, x.positions, x.cos, x.sin, none, none,
                                                     none, none, none, none, dqkv});
                    }};
      }
      const at::Tensor q_weight = Bf16({e}), k_weight = Bf16({e}), dq_weight = Fp32({e}), dk_weight = Fp32({e});
      return Work{rows_ * (2 * j * 2 + (h + k) * e * 2 + 4 * (h + k)), [=, this] {
                    backend_.kernels.qkv_backward({x.q_HTE, x.k_TKE, x.v_TKE, x.positions, x.cos, x.sin, q_weight,
                                                   k_weight, x.qkv, x.rstd, dq_weight, dk_weight, dqkv});
                  }};
    });
  }

  void Embedding() {
    const int64_t vocab = model_.vocab_size;
    EmbeddingBackward("embedding_backward",
                      [this, vocab] { return at::randperm(vocab, backend_.options(at::kLong)).slice(0, 0, rows_); });
    // By Zipf's law: the most frequent token has every twelfth row or so, as a text's has.
    EmbeddingBackward("embedding_backward, tokens as a text has them", [this, vocab] {
      const at::Tensor odds = at::arange(1, vocab + 1, backend_.options(at::kFloat)).reciprocal();
      return at::multinomial(odds, rows_, true);
    });
  }

  void EmbeddingBackward(const std::string& name, const std::function<at::Tensor()>& draw) {
    Row(name, rows_, [&] {
      const at::Tensor tokens = draw();
      const int64_t d = model_.hidden_size, distinct = std::get<0>(at::_unique(tokens)).numel();
      const at::Tensor dx = Bf16({rows_, d}), dweight = Fp32({model_.vocab_size, d});
      return Work{rows_ * d * 2 + distinct * 8 * d, [=, this] {
                    backend_.kernels.embedding_backward({tokens, dx, dweight});
                  }};
    });
  }

  void Head() {
    const int64_t v = model_.vocab_size, rows = head_rows_;
    Row("head_forward", rows, [=, this] {
      const at::Tensor logits = Fp32({rows, v}), targets = Integers(v, rows), log_prob = Fp64(rows), none,
                       softmax = at::zeros({rows, 2}, backend_.options(at::kDouble));
      return Work{rows * 4 * v, [=, this] {
                    backend_.kernels.head_forward({logits, targets, softmax, log_prob, none, 1});
                  }};
    });
    // The first call turns the logits into gradients; later ones read what those bytes are as numbers, at no other
    // speed.
    Row("head_backward", rows, [=, this] {
      const bool narrow = backend_.dlogits_in_run_dtype;
      const at::Tensor logits = Fp32({rows, v}), targets = Integers(v, rows), dlog_prob = Fp64(rows), none,
                       softmax = at::zeros({rows, 2}, backend_.options(at::kDouble)),
                       dlogits = narrow ? logits.view(at::kBFloat16).slice(1, 0, v) : logits;
      return Work{(narrow ? 6 : 8) * rows * v, [=, this] {
                    backend_.kernels.head_backward({logits, dlogits, targets, softmax, dlog_prob, none, none, 1});
                  }};
    });
  }

  void Loss(int64_t rows) {
    Row("loss", rows, [this, rows] {
      LossRows of_rows;
      of_rows.old_log_prob_T = Fp64(rows);
      of_rows.advantage_T = Fp64(rows);
      of_rows.weight_T = Fp64(rows).abs();
      of_rows.mask_T = at::ones({rows}, backend_.options(at::kDouble));
      const LossOptions options = {.mode = LossMode::kVanilla, .clip_low = 0.2, .clip_high = 0.2};
      const at::Tensor log_prob = Fp64(rows), dlog_prob = Fp64(rows), none,
                       sums = at::zeros({kNumLossSums}, backend_.options(at::kDouble));
      return Work{rows * 6 * 8, [=, this] {
                    backend_.kernels.loss({options, of_rows, log_prob, none, dlog_prob, none, sums});
                  }};
    });
  }

  void WholeGradients() {
    const int64_t columns = model_.hidden_size, count = columns * 2 * model_.ffn_size;
    Row("vector_norm", columns, [=, this] {
      const at::Tensor values = Fp32({count}), norm = Fp64(1)[0];
      return Work{count * 4, [=, this] { backend_.kernels.vector_norm({values, norm}); }};
    });
    Row("first_nonfinite", columns, [=, this] {
      const at::Tensor values = Fp32({count}), index = at::zeros({1}, backend_.options(at::kLong))[0];
      return Work{count * 4, [=, this] { backend_.kernels.first_nonfinite({values, index}); }};
    });
    Row("word_sum", columns, [=, this] {
      const at::Tensor weights = Bf16({count}), sum = at::zeros({1}, backend_.options(at::kLong))[0];
      return Work{count * 2,
                  [=, this] { backend_.kernels.word_sum({.values = weights, .columns = columns, .sum = sum}); }};
    });
  }

  worker::cuda::AttentionKernels OfAttention() const {
    return backend_.attention_kernels != nullptr ? *backend_.attention_kernels
                                                 : worker::cuda::ComposedAttentionKernels();
  }

  void Merge() {
    const int64_t h = model_.num_heads, e = model_.head_size;
    Row(std::string(kOfAttention) + "merge", rows_, [=, this] {
      const at::Tensor a = Bf16({rows_, h, e}), b = Bf16({rows_, h, e}), o = at::empty_like(a),
                       lse_a = Fp32({h, rows_}), lse_b = Fp32({h, rows_}), lse = at::empty_like(lse_a);
      return Work{rows_ * h * (6 * e + 12), [=, this] { OfAttention().merge({a, b, lse_a, lse_b, o, lse}); }};
    });
  }

  // As many parts as a call over a short prefix has chunks.
  void AddParts() {
    const int64_t k = model_.num_kv_heads, e = model_.head_size, parts = 4;
    Row(std::string(kOfAttention) + "add_parts", rows_, [=, this] {
      const at::Tensor of_calls = Bf16({parts, rows_, k, e}), sum = Fp32({rows_, k, e});
      return Work{rows_ * k * e * (2 * parts + 8), [=, this] { OfAttention().add_parts({of_calls, sum}); }};
    });
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
