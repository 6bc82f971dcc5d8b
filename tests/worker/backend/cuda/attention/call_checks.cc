#include "tests/worker/backend/cuda/attention/call_checks.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "tests/testing/tensors.h"
#include "tests/worker/backend/cuda/attention/fake_flash_calls.h"
#include "worker/backend/composed/composed_backend.h"
#include "worker/backend/cuda/attention/composed_attention_kernels.h"

namespace stemma::testing {
namespace {

using worker::cuda::AttentionCall;
using worker::cuda::CallGradients;
using worker::cuda::CallOutput;
using worker::cuda::ComposedAttentionKernels;
using worker::cuda::FlashAttentionOptions;
using worker::cuda::FlashCalls;

}  // namespace

std::string Describe(const CallShape& s) {
  std::string text;
  for (const int64_t x : {s.batch, s.rows, s.keys, s.heads, s.kv_heads, s.head_size}) text += std::to_string(x) + " ";
  return text + (s.causal ? "causal" : "no mask");
}

AttentionCall MakeCall(const CallShape& s, at::Device device) {
  Random random(11);
  const auto normal = [&](at::IntArrayRef sizes) { return random.Normal(sizes, at::kBFloat16).to(device); };
  return {.q = normal({s.batch, s.rows, s.heads, s.head_size}),
          .k = normal({s.batch, s.keys, s.kv_heads, s.head_size}),
          .v = normal({s.batch, s.keys, s.kv_heads, s.head_size}),
          .max_q = s.rows,
          .max_k = s.keys,
          .causal = s.causal,
          .scale = 1 / std::sqrt(static_cast<double>(s.head_size))};
}

AttentionCall OnHost(const AttentionCall& call) {
  AttentionCall host = call;
  for (at::Tensor* x : {&host.q, &host.k, &host.v}) *x = x->cpu().to(at::kDouble);
  return host;
}

CallErrors ErrorsOfCall(const FlashCalls& calls, const CallShape& shape, at::Device device) {
  const AttentionCall call = MakeCall(shape, device), host = OnHost(call);
  const FakeFlashCalls fake;
  const CallOutput expected = fake.Forward(host), actual = calls.Forward(call);
  Random random(12);
  const auto normal = [&] { return random.Normal(call.q.sizes(), at::kBFloat16); };
  const at::Tensor dout = normal(), out = normal(), lse = (expected.lse + 0.7).to(at::kFloat);
  const CallGradients e =
      fake.Backward(host, {dout.to(at::kDouble), out.to(at::kDouble), lse.to(at::kDouble), expected.rng});
  const CallGradients a = calls.Backward(call, {dout.to(device), out.to(device), lse.to(device), actual.rng});
  CallErrors errors;
  for (const auto& [x, y] :
       {std::pair{actual.out, expected.out}, std::pair{a.dq, e.dq}, std::pair{a.dk, e.dk}, std::pair{a.dv, e.dv}}) {
    const double error = RelativeError(x.cpu(), y);
    errors.values = std::isnan(error) ? INFINITY : std::max(errors.values, error);
  }
  errors.lse = RelativeError(actual.lse.cpu(), expected.lse);
  errors.lse_by_head = actual.lse.sizes() == at::IntArrayRef({shape.batch, shape.heads, shape.rows}) &&
                       actual.lse.is_contiguous() && actual.lse.scalar_type() == at::kFloat;
  return errors;
}

std::vector<CallShape> CallShapes() {
  std::vector<CallShape> shapes;
  for (const bool causal : {false, true}) {
    for (const auto& [heads, kv_heads] : {std::pair<int64_t, int64_t>{4, 4}, {8, 2}, {8, 1}, {12, 2}}) {
      for (const int64_t rows : {1, 64, 65, 128, 192, 257}) {
        for (const int64_t head_size : {64, 128}) {
          shapes.push_back({1, rows, causal ? rows : 129, heads, kv_heads, head_size, causal});
        }
      }
    }
    shapes.push_back({3, 192, causal ? 192 : 64, 8, 2, 128, causal});
  }
  return shapes;
}

std::vector<DenseSetting> DenseSettings() {
  return {{.name = "any number of keys", .keys_multiple = 1},
          {.name = "keys by the 128"},
          {.name = "keys in several parts", .max_keys = 1024},
          {.name = "spans of 100 rows and 8 heads alone", .scores_of_lone_span = 8 * 100 * 100}};
}

FlashAttentionOptions OptionsOf(const DenseSetting& setting, const WaveCase& wave, const FlashCalls& dense) {
  FlashAttentionOptions options{.kernels = ComposedAttentionKernels(), .num_multiprocessors = 132, .dense = &dense};
  options.scores_of_lone_span = setting.scores_of_lone_span;
  for (const bool causal : {false, true}) {
    options.admitted.Admit({.family = {wave.num_heads, wave.num_kv_heads, wave.head_size, at::kBFloat16, causal},
                            .max_batch = 8,
                            .min_rows = 128,
                            .max_rows = 4096,
                            .min_keys = setting.keys_multiple,
                            .max_keys = setting.max_keys,
                            .keys_multiple = setting.keys_multiple});
  }
  return options;
}

double ErrorOfWave(const WaveCase& wave, const AttentionOp& attention, at::Device device) {
  WaveCase c = wave;
  c.dtype = at::kBFloat16;
  const WaveResult exact = RunWave(MakeWave(c, device, at::kFloat), *MakeComposedAttention());
  return WorstError(RunWave(MakeWave(c, device, at::kBFloat16), attention), exact);
}

std::vector<WaveCase> CheckedWaves() {
  std::vector<WaveCase> waves;
  for (const int64_t prefix : {1, 64, 129, 700}) {
    waves.push_back({.num_heads = 8,
                     .num_kv_heads = 2,
                     .head_size = 128,
                     .ancestor_rows = {prefix},
                     .spans = {{192, 0}, {1, 0}, {77, 0}, {64, 0}}});
  }
  // Its last 101 keys are a call of their own beside a library that takes multiples of 128.
  waves.push_back(
      {.num_heads = 8, .num_kv_heads = 2, .head_size = 128, .ancestor_rows = {1253}, .spans = {{64, 0}, {33, 0}}});
  // Keys of two calls and a rest beside one that takes 1,024 at the most.
  waves.push_back(
      {.num_heads = 8, .num_kv_heads = 2, .head_size = 128, .ancestor_rows = {2300}, .spans = {{64, 0}, {33, 0}}});
  // Long spans before, between and behind short ones.
  waves.push_back({.num_heads = 8,
                   .num_kv_heads = 2,
                   .head_size = 128,
                   .ancestor_rows = {65},
                   .spans = {{130, 0}, {40, 0}, {33, 0}, {192, -1}, {21, -1}, {12, -1}, {140, -1}}});
  waves.push_back({.num_heads = 8,
                   .num_kv_heads = 2,
                   .head_size = 64,
                   .ancestor_rows = {130, 0, 64, 5},
                   .spans = {{9, -1}, {64, 0}, {0, 0}, {1, 0}, {7, 1}, {65, 2}, {33, 3}, {12, -1}}});
  waves.push_back(
      {.num_heads = 8, .num_kv_heads = 1, .head_size = 64, .ancestor_rows = {5}, .spans = {{1, 0}, {1, 0}}});
  waves.push_back({.num_heads = 4, .num_kv_heads = 4, .head_size = 64, .spans = {{300, -1}}});
  return waves;
}

}  // namespace stemma::testing
