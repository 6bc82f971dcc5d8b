// Each fused kernel beside the separate ATen calls that it replaces (GB/s of the bytes that must move, ratio of times),
// and attention's calls (GFLOP/s). Run on a quiet machine: ops_bench [threads]. Medians of interleaved runs.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "common/base/clock.h"
#include "tests/testing/backends.h"
#include "worker/backend/cpu/rowwise_table.h"
#include "worker/backend/cpu/split_attention.h"
#include "worker/memory/cpu_allocator.h"
#include "worker/ops/linear.h"
#include "worker/ops/norm.h"
#include "worker/ops/qkv.h"
#include "worker/ops/swiglu.h"

namespace stemma::worker {
namespace {

constexpr int64_t kT = 2048, kD = 512, kH = 8, kK = 4, kE = 64, kF = 1408;
constexpr int kRuns = 15;

using Work = std::function<void()>;

double SecondsOf(const Work& work) {
  const double begin = RealClock().MonotonicSeconds();
  work();
  return RealClock().MonotonicSeconds() - begin;
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

struct Pair {
  double fused, separate;
};

Pair MedianSeconds(const Work& fused, const Work& separate) {
  std::vector<double> a, b;
  for (int run = 0; run < kRuns + 2; ++run) {
    const double seconds_a = SecondsOf(fused), seconds_b = SecondsOf(separate);
    if (run < 2) continue;  // warm up
    a.push_back(seconds_a);
    b.push_back(seconds_b);
  }
  return {Median(a), Median(b)};
}

void PrintFused(const char* name, double floats_moved, const Work& fused, const Work& separate) {
  const Pair seconds = MedianSeconds(fused, separate);
  std::printf("%-24s %8.3f ms %7.1f GB/s   separate %8.3f ms   x%.1f\n", name, 1e3 * seconds.fused,
              4e-9 * floats_moved / seconds.fused, 1e3 * seconds.separate, seconds.separate / seconds.fused);
}

void BenchNorm() {
  const at::Tensor x = at::randn({kT, kD}), weight = at::randn({kD}), dy = at::randn({kT, kD}),
                   residual = at::randn({kT, kD});
  const at::Tensor dweight = at::zeros({kD});
  const at::Tensor rstd = RmsNormForward(testing::TestBackend(), x, weight, 1e-6).rstd_T;
  PrintFused(
      "norm forward", 2 * kT * kD, [&] { RmsNormForward(testing::TestBackend(), x, weight, 1e-6); },
      [&] {
        const at::Tensor r = (x.pow(2).mean({-1}, true) + 1e-6).rsqrt();
        const at::Tensor y = x * r * weight;
      });
  PrintFused(
      "norm backward", 4 * kT * kD,
      [&] {
        RmsNormBackward(testing::TestBackend(), {x, rstd, weight}, dy, residual, dweight);
      },
      [&] {
        const at::Tensor r = rstd.unsqueeze(1), hat = x * r, d = dy * weight;
        dweight.add_((dy * hat).sum(0));
        const at::Tensor dx = residual + r * (d - hat * (d * hat).mean({-1}, true));
      });
}

void BenchSwiglu() {
  const at::Tensor x = at::randn({kT, 2 * kF}), dy = at::randn({kT, kF});
  PrintFused(
      "swiglu forward", 3 * kT * kF, [&] { SwigluForward(testing::TestBackend(), x); },
      [&] { const at::Tensor y = at::silu(x.narrow(1, 0, kF)) * x.narrow(1, kF, kF); });
  PrintFused(
      "swiglu backward", 5 * kT * kF, [&] { SwigluBackward(testing::TestBackend(), dy, x); },
      [&] {
        const at::Tensor gate = x.narrow(1, 0, kF), up = x.narrow(1, kF, kF);
        const at::Tensor dgate = at::silu_backward(dy * up, gate), dup = dy * at::silu(gate);
        const at::Tensor both = at::cat({dgate, dup}, 1);
      });
}

at::Tensor Rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const at::Tensor rotated = at::cat({-x.narrow(2, kE / 2, kE / 2), x.narrow(2, 0, kE / 2)}, 2);
  return x * cos + rotated * sin;
}

void BenchQkv() {
  const QkvShape shape{kH, kK, kE};
  ModelConfig config;
  config.head_size = kE;
  config.rope_theta = 10000;
  const RopeTable rope = MakeRopeTable(config, kT, at::kFloat, at::kCPU);
  const at::Tensor positions = at::arange(kT), cos = at::cat({rope.cos_PE, rope.cos_PE}, 1),
                   sin = at::cat({rope.sin_PE, rope.sin_PE}, 1);
  const int64_t columns = (kH + 2 * kK) * kE;
  const at::Tensor qkv = at::randn({kT, columns});
  const at::Tensor dq = at::randn({kH, kT, kE}), dk = at::randn({kT, kK, kE}), dv = at::randn({kT, kK, kE});
  const auto split = [&](int64_t first, int64_t heads) {
    return qkv.narrow(1, first * kE, heads * kE).view({kT, heads, kE}).transpose(0, 1);
  };
  PrintFused(
      "qkv forward", 2 * kT * columns, [&] { QkvForward(testing::TestBackend(), qkv, positions, rope, shape, {}); },
      [&] {
        Rope(split(0, kH), cos, sin).contiguous();
        Rope(split(kH, kK), cos, sin).contiguous();
        split(kH + kK, kK).contiguous();
      });
  PrintFused(
      "qkv backward", 2 * kT * columns,
      [&] {
        QkvBackward(testing::TestBackend(), {dq, dk, dv, {}, {}, {}, {}}, positions, rope, {}, at::kFloat);
      },
      [&] {
        const at::Tensor all =
            at::cat({Rope(dq, cos, -sin), Rope(dk.transpose(0, 1), cos, -sin), dv.transpose(0, 1)}, 0);
        all.transpose(0, 1).reshape({kT, columns});
      });
  const at::Tensor w = at::randn({kE}), dw = at::zeros({kE});
  const QkNorm norm{w, w, 1e-6};
  const at::Tensor rstd = QkvForward(testing::TestBackend(), qkv, positions, rope, shape, norm).rstd_TJ;
  PrintFused(
      "qkv forward, QK-norm", 2 * kT * columns,
      [&] { QkvForward(testing::TestBackend(), qkv, positions, rope, shape, norm); },
      [&] { QkvForward(testing::TestBackend(), qkv, positions, rope, shape, {}); });
  PrintFused(
      "qkv backward, QK-norm", 3 * kT * columns,
      [&] {
        QkvBackward(testing::TestBackend(), {dq, dk, dv, qkv, rstd, dw, dw}, positions, rope, norm, at::kFloat);
      },
      [&] {
        QkvBackward(testing::TestBackend(), {dq, dk, dv, {}, {}, {}, {}}, positions, rope, {}, at::kFloat);
      });
}

void PrintRate(const char* name, double flops, const Work& work) {
  const Pair seconds = MedianSeconds(work, [] {});
  std::printf("%-44s %8.3f ms %7.1f GFLOP/s\n", name, 1e3 * seconds.fused, 1e-9 * flops / seconds.fused);
}

// Computes nothing: what is left is the copies, the merge and the sums around the calls.
class NoKernel : public AttentionKernel {
 public:
  Output Forward(const Call& call) const override {
    return {at::empty(call.q.sizes(), call.q.options()), at::empty(call.q.sizes().slice(0, 4), call.q.options())};
  }
  at::Tensor Backward(const Call& call, const Output&, const at::Tensor&, const KeyGradients&) const override {
    return at::empty(call.q.sizes(), call.q.options());
  }
};

// `prefix` ancestor rows (0: none), `spans` suffixes of `rows`.
void BenchAttention(int64_t prefix, int64_t spans, int64_t rows, CausalLayout layout) {
  const int64_t total = spans * rows;
  const CpuAttention kernel;
  const at::Tensor q = at::randn({kH, total, kE}), k = at::randn({total, kK, kE}), v = at::randn({total, kK, kE});
  AttentionBatch batch;
  batch.layout = layout;
  batch.scale = 1 / std::sqrt(static_cast<double>(kE));
  if (prefix > 0) {
    const auto kv = [&] { return at::randn({prefix, kK, kE}); };
    batch.ancestors.push_back({kv(), kv(), kv(), kv()});
  }
  for (int64_t i = 0; i < spans; ++i) batch.spans.push_back({i * rows, (i + 1) * rows, prefix > 0 ? 0 : -1});
  const double pairs = static_cast<double>(total) * static_cast<double>(prefix) +
                       0.5 * static_cast<double>(total) * static_cast<double>(rows + 1);
  const at::Tensor dout = at::randn({total, kH * kE});
  const AttentionSaved saved = testing::SplitOver(kernel).Forward(batch, q, k, v);
  char name[96];
  const auto label = [&](const char* what) {
    std::snprintf(name, sizeof name, "attention %s %ld + %ld x %ld %s", what, static_cast<long>(prefix),
                  static_cast<long>(spans), static_cast<long>(rows), layout == CausalLayout::kLoop ? "loop" : "padded");
    return name;
  };
  PrintRate(label("forward"), 4 * pairs * kH * kE, [&] { testing::SplitOver(kernel).Forward(batch, q, k, v); });
  PrintRate(label("backward"), 10 * pairs * kH * kE, [&] { testing::SplitOver(kernel).Backward(batch, dout, saved); });
  const Pair around = MedianSeconds([&] { testing::SplitOver(NoKernel()).Forward(batch, q, k, v); },
                                    [&] { testing::SplitOver(NoKernel()).Backward(batch, dout, saved); });
  std::printf("  around the calls: forward %.3f ms, backward %.3f ms\n", 1e3 * around.fused, 1e3 * around.separate);
}

// Our kernel beside LibTorch's CPU flash operator, on the same heads without groups, which is all that the latter
// takes.
void BenchKernel(int64_t rows, int64_t keys, bool causal) {
  const CpuAttention kernel;
  const double scale = 1 / std::sqrt(static_cast<double>(kE));
  const at::Tensor q = at::randn({1, kH, rows, kE}), k = at::randn({1, kH, keys, kE}),
                   dout = at::randn({1, kH, rows, kE});
  const at::Tensor grouped_q = q.unsqueeze(2), grouped_dout = dout.unsqueeze(2);
  const AttentionKernel::Call call = {grouped_q, k, k, causal, scale};
  const AttentionKernel::Output out = kernel.Forward(call);
  const at::Tensor flat_out = out.out.squeeze(2), flat_lse = out.lse.squeeze(2);
  const Pair forward =
      MedianSeconds([&] { kernel.Forward(call); },
                    [&] { at::_scaled_dot_product_flash_attention_for_cpu(q, k, k, 0, causal, {}, scale); });
  const AttentionKernel::KeyGradients sums = {at::zeros_like(k), at::zeros_like(k)};
  const Pair backward = MedianSeconds([&] { kernel.Backward(call, out, grouped_dout, sums); },
                                      [&] {
                                        at::_scaled_dot_product_flash_attention_for_cpu_backward(
                                            dout, q, k, k, flat_out, flat_lse, 0, causal, {}, scale);
                                      });
  const double pairs = static_cast<double>(rows) * (causal ? 0.5 * static_cast<double>(rows + 1) : keys);
  const auto print = [&](const char* name, double flops, const Pair& seconds) {
    std::printf("  %-9s %8.3f ms %6.1f GFLOP/s   LibTorch %8.3f ms %6.1f GFLOP/s   x%.2f\n", name, 1e3 * seconds.fused,
                1e-9 * flops / seconds.fused, 1e3 * seconds.separate, 1e-9 * flops / seconds.separate,
                seconds.separate / seconds.fused);
  };
  std::printf("attention %ld x %ld%s\n", static_cast<long>(rows), static_cast<long>(keys), causal ? " causal" : "");
  print("forward", 4 * pairs * kH * kE, forward);
  print("backward", 10 * pairs * kH * kE, backward);
}

void BenchGemm() {
  const at::Tensor x = at::randn({kT, kD}), w = at::randn({2 * kF, kD}), dy = at::randn({kT, 2 * kF});
  const at::Tensor dw = at::zeros({2 * kF, kD});
  const double flops = 2.0 * kT * kD * 2 * kF;
  PrintRate("linear forward", flops, [&] { LinearForward(x, w, {}); });
  PrintRate("linear backward input", flops, [&] { LinearBackwardInput(dy, w); });
  PrintRate("linear backward weight", flops, [&] { LinearBackwardWeight(testing::TestBackend(), dy, x, dw, {}); });
}

}  // namespace
}  // namespace stemma::worker

int main(int argc, char** argv) {
  stemma::worker::InstallCpuAllocator();
  const c10::InferenceMode no_graph;
  at::set_num_threads(argc > 1 ? std::atoi(argv[1]) : 2);
  std::printf("T=%ld D=%ld H=%ld K=%ld E=%ld F=%ld fp32, %d threads, kernels: %s\n",
              static_cast<long>(stemma::worker::kT), static_cast<long>(stemma::worker::kD),
              static_cast<long>(stemma::worker::kH), static_cast<long>(stemma::worker::kK),
              static_cast<long>(stemma::worker::kE), static_cast<long>(stemma::worker::kF), at::get_num_threads(),
              stemma::worker::kernels::ChosenTable().name);
  stemma::worker::BenchNorm();
  stemma::worker::BenchSwiglu();
  stemma::worker::BenchQkv();
  stemma::worker::BenchGemm();
  for (const int64_t rows : {64, 128, 256, 512, 1024, 2048}) stemma::worker::BenchKernel(rows, rows, true);
  for (const int64_t keys : {64, 128, 256, 512, 1024, 2048}) stemma::worker::BenchKernel(2048, keys, false);
  stemma::worker::BenchAttention(1024, 8, 256, stemma::worker::CausalLayout::kLoop);
  stemma::worker::BenchAttention(1024, 8, 256, stemma::worker::CausalLayout::kPadded);
  stemma::worker::BenchAttention(2048, 16, 128, stemma::worker::CausalLayout::kLoop);
  stemma::worker::BenchAttention(2048, 16, 128, stemma::worker::CausalLayout::kPadded);
  stemma::worker::BenchAttention(512, 4, 512, stemma::worker::CausalLayout::kLoop);
  stemma::worker::BenchAttention(64, 4, 512, stemma::worker::CausalLayout::kLoop);
  stemma::worker::BenchAttention(0, 1, 2048, stemma::worker::CausalLayout::kLoop);
  return 0;
}
