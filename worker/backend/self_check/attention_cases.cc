// Attention: spans of odd, whole and equal lengths, with and without an ancestor, several ancestors, those that lie
// behind each other in memory, one row, one key, scores of which one outweighs all others, scores far below zero, a
// long span by itself and among others, and passes without gradients. Every form of call that a run's attention makes
// is made by some case.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/round_up.h"
#include "worker/backend/self_check/cases.h"

namespace stemma::worker::self_check {
namespace {

// The spans of one ancestor.
struct Family {
  int64_t ancestor_rows;  // 0: none
  std::vector<int64_t> spans;
};

struct AttentionCase {
  std::string name;
  std::vector<Family> families;
  CausalLayout layout = CausalLayout::kLoop;
  double query_scale = 1;
  double score_offset = 0;  // what is added to every score
  bool neighbours = false;  // ancestors' K, V and gradients are slices of one tensor each
  bool forward_only = false;

  // What gradients are compared with where they are smaller. Those of one key that outweighs all others cancel, and err
  // by a part of their terms.
  double query_gradient_size() const { return query_scale > 1 ? 1 : 0.1; }
  double key_gradient_size() const { return query_scale > 1 ? query_scale : 0.1; }
};

// Rows of 64 modulo 128, a single query, a single key and lengths that no tile divides are where libraries failed.
std::vector<AttentionCase> Batches() {
  const std::vector<Family> wave = {{129, {1, 64, 33, 7}}};
  const std::vector<Family> mixed = {{1, {5}}, {63, {1, 1, 40}}, {256, {64, 130}}, {0, {20, 1}}};
  return {{.name = "a prefix of 193 rows", .families = {{0, {193}}}},
          {.name = "a prefix of one row", .families = {{0, {1}}}},
          {.name = "a wave", .families = wave},
          {.name = "a padded wave", .families = wave, .layout = CausalLayout::kPadded},
          {.name = "several ancestors", .families = mixed},
          {.name = "several ancestors, padded", .families = mixed, .layout = CausalLayout::kPadded},
          // Behind the keys that a library takes, the others are a call of their own.
          {.name = "a long prefix", .families = {{1253, {16, 5}}}},
          // A library that takes keys by the 128 takes all of 256.
          {.name = "one query", .families = {{256, {1}}}},
          {.name = "large scores", .families = {{256, {64}}}, .query_scale = 30},
          {.name = "low scores", .families = {{256, {64}}}, .score_offset = -100},
          {.name = "equally long spans", .families = {{256, {192, 192, 192}}}},
          // Few keys and many rows, which are cut into chunks and a rest.
          {.name = "a short prefix", .families = {{100, {301}}}},
          {.name = "neighbouring ancestors", .families = {{70, {40}}, {45, {33, 20}}}, .neighbours = true},
          {.name = "a forward pass", .families = mixed, .forward_only = true}};
}

constexpr int64_t kMultiple = 128;

int64_t RowsOfScores(int64_t scores, int64_t heads) {
  return static_cast<int64_t>(std::sqrt(static_cast<double>(scores) / static_cast<double>(heads)));
}

// So many rows that plain operations' scores take 1 GiB in fp64, no multiple of 128.
int64_t RowsOfLongSpan(int64_t heads) {
  constexpr int64_t kScores = int64_t{1} << 27, kMost = 4352;
  const int64_t most = RowsOfScores(kScores, heads);
  return std::clamp<int64_t>(most / kMultiple * kMultiple, kMultiple, kMost) - 3;
}

// So few rows, no multiple of 128, that a span of them is a call of its own while it is checked, whatever the heads:
// kScoresOfCheckedSpan in cuda/attention/own_calls.h.
int64_t RowsOfLoneSpan(int64_t heads) {
  constexpr int64_t kScores = int64_t{1} << 20, kBelowMultiple = 3;
  return RoundUp(RowsOfScores(kScores, heads) + 1 + kBelowMultiple, kMultiple) - kBelowMultiple;
}

struct Heads {
  int64_t heads, kv_heads, head_size;
};

// What every element of keys has more where scores have an offset: little, as gradients of queries are sums of it that
// cancel. Those of queries have the rest.
constexpr double kShareOfKeys = -1;
double ShareOfQueries(const AttentionCase& c, int64_t head_size) {
  return c.score_offset / kShareOfKeys / std::sqrt(static_cast<double>(head_size));
}

// Drawn values and, where scores have an offset, such a share: rows of no mean then add to no score but by the shares.
at::Tensor WithShare(const AttentionCase& c, const at::Tensor& values, double share) {
  return c.score_offset == 0 ? values : values - values.mean(-1, /*keepdim=*/true) + share;
}

at::Tensor DrawKeys(Operands& operands, const AttentionCase& c, at::IntArrayRef sizes) {
  return operands.Given(WithShare(c, operands.Draw(sizes), kShareOfKeys), Numbers::kRun);
}

// K and V of so many rows, and gradients that are added to.
AncestorKv MakeAncestor(Operands& operands, const AttentionCase& c, const Heads& heads, int64_t rows, int64_t index) {
  const std::vector<int64_t> sizes = {rows, heads.kv_heads, heads.head_size};
  AncestorKv kv{DrawKeys(operands, c, sizes), operands.Normal(sizes, Numbers::kRun), {}, {}};
  if (c.forward_only) return kv;
  const auto sum = [&](const char* name, double size) {
    return operands.AddedTo(absl::StrCat(name, " ", index), sizes, Numbers::kAcc, 0.1, size);
  };
  kv.gk_CKE = sum("gk_CKE", c.key_gradient_size());
  kv.gv_CKE = sum("gv_CKE", c.query_gradient_size());
  return kv;
}

// The ancestors one by one, or cut from one.
std::vector<AncestorKv> MakeAncestors(Operands& operands, const AttentionCase& c, const Heads& heads) {
  std::vector<AncestorKv> ancestors;
  int64_t all_rows = 0;
  for (const Family& family : c.families) all_rows += family.ancestor_rows;
  AncestorKv whole;
  if (c.neighbours) whole = MakeAncestor(operands, c, heads, all_rows, 0);
  int64_t row = 0;
  for (const Family& family : c.families) {
    const int64_t rows = family.ancestor_rows;
    if (rows == 0) continue;
    const auto slice = [&](const at::Tensor& x) { return x.narrow(0, row, rows); };
    ancestors.push_back(
        c.neighbours ? AncestorKv{slice(whole.k_CKE), slice(whole.v_CKE), slice(whole.gk_CKE), slice(whole.gv_CKE)}
                     : MakeAncestor(operands, c, heads, rows, static_cast<int64_t>(ancestors.size())));
    row += rows;
  }
  return ancestors;
}

AttentionBatch MakeBatch(Operands& operands, const AttentionCase& c, const Heads& heads) {
  AttentionBatch batch;
  batch.layout = c.layout;
  batch.scale = 1 / std::sqrt(static_cast<double>(heads.head_size));
  batch.ancestors = MakeAncestors(operands, c, heads);
  int64_t begin = 0, ancestors = 0;
  for (const Family& family : c.families) {
    const int64_t ancestor = family.ancestor_rows > 0 ? ancestors++ : -1;
    for (const int64_t rows : family.spans) {
      batch.spans.push_back({begin, begin + rows, ancestor});
      begin += rows;
    }
  }
  return batch;
}

void RunAttention(const Side& side, Operands& operands, const AttentionCase& c, const Heads& heads) {
  const AttentionBatch batch = MakeBatch(operands, c, heads);
  const int64_t rows = batch.spans.back().end, width = heads.heads * heads.head_size;
  const at::Tensor q_values = WithShare(c, operands.Draw({heads.heads, rows, heads.head_size}) * c.query_scale,
                                        ShareOfQueries(c, heads.head_size));
  const at::Tensor q = operands.Given(q_values, Numbers::kRun, side.queries_layout());
  const at::Tensor k = DrawKeys(operands, c, {rows, heads.kv_heads, heads.head_size});
  const at::Tensor v = operands.Normal({rows, heads.kv_heads, heads.head_size}, Numbers::kRun);
  const at::Tensor dout = operands.Normal({rows, width}, Numbers::kRun);
  operands.SpoilFreeMemory({{rows, width}, {rows, width}}, Numbers::kRun);
  operands.SpoilFreeMemory({{heads.heads, rows}}, Numbers::kAcc);
  const AttentionSaved saved = side.attention.Forward(batch, q, k, v);
  operands.Compare("o_TD", saved.o_TD, Numbers::kRun);
  operands.Compare("lse_HT", saved.lse_HT, Numbers::kRows);
  if (c.forward_only) return;
  operands.SpoilFreeMemory({{rows, width}, k.sizes().vec(), v.sizes().vec()}, Numbers::kRun);
  const AttentionGradients gradients = side.attention.Backward(batch, dout, saved);
  operands.Compare("dq_HTE", gradients.dq_HTE, Numbers::kRun, c.query_gradient_size());
  operands.Compare("dk_TKE", gradients.dk_TKE, Numbers::kRun, c.key_gradient_size());
  operands.Compare("dv_TKE", gradients.dv_TKE, Numbers::kRun, c.query_gradient_size());
}

}  // namespace

std::vector<Case> AttentionCases(const CheckShape& shape) {
  std::vector<Case> cases;
  const auto add = [&](const AttentionCase& c, const Heads& heads) {
    cases.push_back({absl::StrCat(c.name, ", ", heads.heads, "/", heads.kv_heads, " heads of ", heads.head_size),
                     [c, heads](const Side& side, Operands& operands) { RunAttention(side, operands, c, heads); }});
  };
  const std::vector<AttentionCase> batches = Batches();
  const Heads own = {shape.num_heads, shape.num_kv_heads, shape.head_size};
  for (const AttentionCase& c : batches) add(c, own);
  const int64_t rows = RowsOfLongSpan(own.heads);
  add({.name = absl::StrCat("a prefix of ", rows, " rows"), .families = {{0, {rows}}}}, own);
  cases.back().is_large = true;
  // Long spans among others are calls of their own, and those between them one. A library that pads rows sees both as
  // of one length.
  const int64_t lone = RowsOfLoneSpan(own.heads), longer = lone + 2;
  add({.name = absl::StrCat("spans of ", lone, ", 40, 30 and ", longer, " rows"),
       .families = {{0, {lone, 40}}, {256, {30, longer}}}},
      own);
  cases.back().is_large = true;
  const AttentionCase& mixed = batches.at(4);
  for (const int64_t size : {64, 128}) {
    add(mixed, {6, 2, size});
    add(mixed, {2, 2, size});
  }
  return cases;
}

}  // namespace stemma::worker::self_check
