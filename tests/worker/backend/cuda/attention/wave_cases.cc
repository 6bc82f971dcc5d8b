#include "tests/worker/backend/cuda/attention/wave_cases.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "tests/testing/tensors.h"
#include "worker/backend/accumulate_type.h"

namespace stemma::testing {
namespace {

// Tensors of `rows` each, behind each other in one storage or apart.
std::vector<at::Tensor> RowsOf(const at::Tensor& all, const std::vector<int64_t>& rows, bool neighbours) {
  std::vector<at::Tensor> parts;
  int64_t begin = 0;
  for (const int64_t count : rows) {
    const at::Tensor part = all.narrow(0, begin, count);
    parts.push_back(neighbours ? part : part.clone());
    begin += count;
  }
  return parts;
}

}  // namespace

int64_t WaveCase::rows() const {
  int64_t sum = 0;
  for (const SpanCase& span : spans) sum += span.rows;
  return sum;
}

WaveCase DrawWave(Draw& draw) {
  WaveCase c;
  c.num_kv_heads = draw.Of<int64_t>({1, 2, 3});
  c.num_heads = c.num_kv_heads * draw.Of<int64_t>({1, 2, 4, 8});
  c.head_size = draw.Of<int64_t>({8, 16, 24});
  c.neighbours = draw.Chance(60);
  c.neighbour_gradients = draw.Chance(60);
  c.queries_by_token = draw.Chance(75);
  const int64_t runs = draw.Between(1, 5);
  const bool one_token = draw.Chance(15);
  for (int64_t run = 0; run < runs; ++run) {
    int64_t ancestor = -1;
    if (draw.Chance(75)) {
      ancestor = static_cast<int64_t>(c.ancestor_rows.size());
      c.ancestor_rows.push_back(draw.Chance(10) ? 0 : draw.LogBetween(1, 70));
    }
    const int64_t spans = draw.Between(1, 4);
    for (int64_t i = 0; i < spans; ++i) {
      const int64_t rows = one_token ? draw.Between(0, 1) : draw.Chance(12) ? 0 : draw.LogBetween(1, 40);
      c.spans.push_back({rows, ancestor});
    }
  }
  if (draw.Chance(20)) c.ancestor_rows.push_back(5);  // one that no span sees
  return c;
}

std::string Describe(const WaveCase& c) {
  std::ostringstream text;
  text << "seed " << c.seed << ": " << c.num_heads << "/" << c.num_kv_heads << " heads of " << c.head_size;
  text << ", ancestors";
  for (const int64_t rows : c.ancestor_rows) text << " " << rows;
  text << (c.neighbours ? " joined" : " apart") << (c.neighbour_gradients ? "" : ", gradients apart") << ", spans";
  for (const SpanCase& span : c.spans) text << " " << span.rows << "@" << span.ancestor;
  text << (c.queries_by_token ? "" : ", queries by head");
  return text.str();
}

WaveInputs MakeWave(const WaveCase& c) { return MakeWave(c, at::kCPU, c.dtype); }

WaveInputs MakeWave(const WaveCase& c, at::Device device, at::ScalarType dtype) {
  Random random(c.seed);
  // Rounded to the case's dtype, so that every dtype of a comparison starts from the same numbers.
  const auto normal = [&](at::IntArrayRef sizes) { return random.Normal(sizes).to(c.dtype).to(dtype).to(device); };
  WaveInputs in;
  const at::Tensor q_THE = normal({c.rows(), c.num_heads, c.head_size});
  in.q_HTE = q_THE.transpose(0, 1);
  if (!c.queries_by_token) in.q_HTE = in.q_HTE.contiguous();
  in.k_TKE = normal({c.rows(), c.num_kv_heads, c.head_size});
  in.v_TKE = normal({c.rows(), c.num_kv_heads, c.head_size});
  in.do_TD = normal({c.rows(), c.num_heads * c.head_size});
  in.batch.scale = 1 / std::sqrt(static_cast<double>(c.head_size));
  int64_t keys = 0;
  for (const int64_t rows : c.ancestor_rows) keys += rows;
  const auto parts = [&](bool neighbours, at::ScalarType type) {
    return RowsOf(normal({keys, c.num_kv_heads, c.head_size}).to(type), c.ancestor_rows, neighbours);
  };
  const auto k = parts(c.neighbours, dtype), v = parts(c.neighbours, dtype);
  const auto gk = parts(c.neighbour_gradients, AccType(dtype)), gv = parts(c.neighbour_gradients, AccType(dtype));
  for (size_t i = 0; i < k.size(); ++i) in.batch.ancestors.push_back({k[i], v[i], gk[i], gv[i]});
  int64_t begin = 0;
  for (const SpanCase& span : c.spans) {
    in.batch.spans.push_back({begin, begin + span.rows, span.ancestor});
    begin += span.rows;
  }
  return in;
}

WaveResult RunWave(const WaveInputs& in, const AttentionOp& attention) {
  const AttentionSaved saved = attention.Forward(in.batch, in.q_HTE, in.k_TKE, in.v_TKE);
  const AttentionGradients g = attention.Backward(in.batch, in.do_TD, saved);
  WaveResult result{saved.o_TD, saved.lse_HT, g.dq_HTE, g.dk_TKE, g.dv_TKE, {}, {}};
  for (const AncestorKv& ancestor : in.batch.ancestors) {
    result.gk.push_back(ancestor.gk_CKE);
    result.gv.push_back(ancestor.gv_CKE);
  }
  return result;
}

double WorstError(const WaveResult& actual, const WaveResult& expected) {
  double worst = 0;
  const auto take = [&](const at::Tensor& a, const at::Tensor& e) {
    const double error = RelativeError(a.cpu(), e.cpu());
    worst = std::isnan(error) ? INFINITY : std::max(worst, error);
  };
  take(actual.o_TD, expected.o_TD);
  take(actual.lse_HT, expected.lse_HT);
  take(actual.dq_HTE, expected.dq_HTE);
  take(actual.dk_TKE, expected.dk_TKE);
  take(actual.dv_TKE, expected.dv_TKE);
  for (size_t i = 0; i < expected.gk.size(); ++i) {
    take(actual.gk[i], expected.gk[i]);
    take(actual.gv[i], expected.gv[i]);
  }
  return worst;
}

}  // namespace stemma::testing
