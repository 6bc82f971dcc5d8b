// What the device itself gives: products of the layer's shapes, attention, copies. Everything else stands beside it.
#include <ATen/ATen.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "tests/gpu/bench/parts.h"
#include "tests/gpu/bench/shapes.h"
#include "worker/memory/host_arena.h"

namespace stemma::testing {
namespace {

using nlohmann::json;

// A product [rows, in] x [in, out]: 2 FLOPs for each multiply-add.
struct Product {
  const char* name;
  int64_t rows, in, out;
  double flops() const { return 2.0 * static_cast<double>(rows) * static_cast<double>(in) * static_cast<double>(out); }
};

json Rate(const Spread& spread, double flops) {
  return {{"seconds", spread.Json()}, {"flops", flops}, {"tflops", flops / spread.median() / 1e12}};
}

std::vector<Product> LayerProducts(const ModelConfig& model, int64_t rows) {
  return {{"qkv", rows, model.hidden_size, model.q_size() + 2 * model.kv_size()},
          {"o", rows, model.q_size(), model.hidden_size},
          {"gate_up", rows, model.hidden_size, 2 * model.ffn_size},
          {"down", rows, model.ffn_size, model.hidden_size}};
}

void MeasureProduct(BenchRun& run, const Backend& backend, const Product& product) {
  const at::TensorOptions bf16 = backend.options(at::kBFloat16);
  const json what = {{"product", product.name}, {"rows", product.rows}, {"in", product.in}, {"out", product.out}};
  const auto row = [&](const char* direction, const std::function<std::function<void()>()>& make) {
    json named = what;
    named["direction"] = direction;
    run.Row("products", named, [&](json& numbers) {
      numbers.update(Rate(run.Time(backend, make()), product.flops()));
      return absl::OkStatus();
    });
  };
  row("forward", [&] {
    const at::Tensor x = at::randn({product.rows, product.in}, bf16), w = at::randn({product.out, product.in}, bf16);
    at::Tensor y = at::empty({product.rows, product.out}, bf16);
    return [=]() mutable { at::mm_out(y, x, w.t()); };
  });
  row("backward, input", [&] {
    const at::Tensor dy = at::randn({product.rows, product.out}, bf16), w = at::randn({product.out, product.in}, bf16);
    at::Tensor dx = at::empty({product.rows, product.in}, bf16);
    return [=]() mutable { at::mm_out(dx, dy, w); };
  });
  row("backward, weight (fp32 sum)", [&] {
    const at::Tensor dy = at::randn({product.rows, product.out}, bf16), x = at::randn({product.rows, product.in}, bf16);
    const at::Tensor sum = at::zeros({product.out, product.in}, backend.options(at::kFloat));
    return [=, kernel = backend.kernels.add_weight_gradient] { kernel({dy, x, sum}); };
  });
}

// `keys` rows of an ancestor; 0: the rows attend to themselves, causally. `step`: by how many rows each span is longer
// than the one before it.
struct AttentionSize {
  int64_t spans = 1, rows = 0, keys = 0, step = 0;
  int64_t RowsOf(int64_t span) const { return rows + span * step; }
  double pairs() const {
    double sum = 0;
    for (int64_t span = 0; span < spans; ++span) {
      const auto t = static_cast<double>(RowsOf(span));
      sum += t * (t + 1) / 2 + t * static_cast<double>(keys);
    }
    return sum;
  }
};

void MeasureAttention(BenchRun& run, const Backend& backend, const ModelConfig& model,
                      const AttentionStrategy& strategy, const AttentionSize& size) {
  json what = {{"strategy", strategy.name}, {"spans", size.spans}, {"rows", size.rows}, {"keys_of_prefix", size.keys}};
  if (size.step > 0) what["step"] = size.step;
  run.Row("attention", what, [&](json& row) {
    const at::TensorOptions bf16 = backend.options(at::kBFloat16);
    const int64_t heads = model.num_heads, kv_heads = model.num_kv_heads;
    const auto normal = [&](int64_t count, int64_t h) { return at::randn({count, h, model.head_size}, bf16); };
    AttentionBatch batch;
    batch.scale = 1 / std::sqrt(static_cast<double>(model.head_size));
    int64_t rows = 0;
    for (int64_t i = 0; i < size.spans; ++i) {
      const int64_t begin = std::exchange(rows, rows + size.RowsOf(i));
      batch.spans.push_back({begin, rows, size.keys > 0 ? 0 : -1});
    }
    if (size.keys > 0) {
      const at::Tensor sum = at::zeros({size.keys, kv_heads, model.head_size}, backend.options(at::kFloat));
      batch.ancestors.push_back({normal(size.keys, kv_heads), normal(size.keys, kv_heads), sum, sum.clone()});
    }
    // As the backend's kernels lay queries out.
    const at::Tensor q_HTE = backend.queries_by_token ? normal(rows, heads).transpose(0, 1)
                                                      : normal(rows, heads).transpose(0, 1).contiguous();
    const at::Tensor k = normal(rows, kv_heads), v = normal(rows, kv_heads);
    const AttentionOp& op = *strategy.op;
    const AttentionSaved saved = op.Forward(batch, q_HTE, k, v);
    const at::Tensor dout = at::randn_like(saved.o_TD);
    const double forward = 4 * static_cast<double>(model.q_size()) * size.pairs();
    row["forward"] = Rate(run.Time(backend, [&] { op.Forward(batch, q_HTE, k, v); }), forward);
    // As published rates count it: five products to the forward's two.
    row["backward"] = Rate(run.Time(backend, [&] { op.Backward(batch, dout, saved); }), 2.5 * forward);
    return absl::OkStatus();
  });
}

class CopyRates {
 public:
  CopyRates(BenchRun& run, const Backend& backend, int64_t bytes) : run_(run), backend_(backend), bytes_(bytes) {}
  CopyRates(const CopyRates&) = delete;
  CopyRates& operator=(const CopyRates&) = delete;
  ~CopyRates() {
    for (void* piece : {out_, in_}) {
      if (piece != nullptr) arena_->Give(piece);
    }
  }

  void Measure() {
    Row("to host", true, false);
    Row("to device", false, true);
    Row("both at once", true, true);
  }

 private:
  // Called within a row, which says why there is no memory.
  absl::Status MakeMemory() {
    if (device_in_.defined()) return absl::OkStatus();
    if (arena_ == nullptr) {
      if (backend_.make_page_lock != nullptr) lock_ = backend_.make_page_lock();
      ASSIGN_OR_RETURN(arena_, HostArena::Create(2 * bytes_ + 2 * HostArena::kAlignment, lock_.get()));
      out_ = arena_->Take(bytes_);
      in_ = arena_->Take(bytes_);
    }
    engine_ = backend_.make_copy_engine();
    device_out_ = at::zeros({bytes_}, backend_.options(at::kByte));
    device_in_ = at::zeros({bytes_}, backend_.options(at::kByte));
    return absl::OkStatus();
  }

  void Row(const char* direction, bool out, bool in) {
    run_.Row("copies", {{"direction", direction}, {"bytes", bytes_}}, [&](json& row) -> absl::Status {
      RETURN_IF_ERROR(MakeMemory());
      Spread spread;
      for (int i = 0; i < 7; ++i) {
        const double begin_s = RealClock().MonotonicSeconds();
        std::vector<CopyTicket> tickets;
        if (out) tickets.push_back(engine_->StartCopyOut({{device_out_.data_ptr(), out_, bytes_}}));
        if (in) tickets.push_back(engine_->StartCopyIn({{in_, device_in_.data_ptr(), bytes_}}));
        for (const CopyTicket ticket : tickets) RETURN_IF_ERROR(engine_->Wait(ticket));
        if (i >= 2) spread.seconds.push_back(RealClock().MonotonicSeconds() - begin_s);
      }
      row["seconds"] = spread.Json();
      row["bytes_per_s_each_way"] = static_cast<double>(bytes_) / spread.median();
      return absl::OkStatus();
    });
  }

  BenchRun& run_;
  const Backend& backend_;
  const int64_t bytes_;
  std::unique_ptr<PageLock> lock_;
  std::unique_ptr<HostArena> arena_;
  std::unique_ptr<CopyEngine> engine_;
  void *out_ = nullptr, *in_ = nullptr;
  at::Tensor device_out_, device_in_;
};

void MeasureDeviceCopy(BenchRun& run, const Backend& backend, int64_t bytes) {
  run.Row("copies", {{"direction", "inside the device, read and written"}, {"bytes", bytes}}, [&](json& row) {
    const at::Tensor from = at::zeros({bytes}, backend.options(at::kByte));
    at::Tensor to = at::empty_like(from);
    const Spread spread = run.Time(backend, [&] { to.copy_(from); });
    row["seconds"] = spread.Json();
    row["bytes_per_s"] = 2 * static_cast<double>(bytes) / spread.median();
    return absl::OkStatus();
  });
}

}  // namespace

absl::Status RunRates(BenchRun& run) {
  const bool tiny = run.options().tiny;
  const ModelConfig model = LlamaConfig(tiny);
  const Backend backend = run.MakeBackend(model);
  const int64_t square = tiny ? 128 : 8192, rows = TrajectoryTokens(tiny);
  MeasureProduct(run, backend, {"square", square, square, square});
  MeasureDeviceCopy(run, backend, tiny ? 1 << 20 : int64_t{1} << 31);
  for (const Product& product : LayerProducts(model, rows)) MeasureProduct(run, backend, product);
  std::vector<AttentionSize> sizes = {
      {.rows = rows}, {.spans = 6, .rows = 2048, .keys = 10239}, {.spans = 6, .rows = 2048, .keys = 10240}};
  for (const int64_t t : {2048, 4096, 8192, 16384, 32768}) sizes.push_back({.rows = t});
  // Spans of unequal lengths, as rollouts have.
  sizes.push_back({.spans = 6, .rows = 1920, .step = 64});
  sizes.push_back({.spans = 3, .rows = 4032, .step = 64});
  sizes.push_back({.spans = 2, .rows = 6112, .step = 64});
  if (tiny) sizes = {{.rows = 64}, {.spans = 3, .rows = 16, .keys = 47}, {.spans = 3, .rows = 16, .step = 5}};
  // Before the self-check, which keeps one: each strategy at its rate, whatever the check says of it.
  const Backend unchecked = run.device().MakeBackend({.run_dtype = at::kBFloat16,
                                                      .num_heads = model.num_heads,
                                                      .num_kv_heads = model.num_kv_heads,
                                                      .head_size = model.head_size});
  std::vector<AttentionStrategy> strategies = unchecked.faster_attention;
  strategies.push_back({"attention", unchecked.attention});
  for (const AttentionSize& size : sizes) {
    for (const AttentionStrategy& strategy : strategies) MeasureAttention(run, backend, model, strategy, size);
  }
  CopyRates(run, backend, tiny ? 1 << 20 : int64_t{1} << 30).Measure();
  return absl::OkStatus();
}

}  // namespace stemma::testing
