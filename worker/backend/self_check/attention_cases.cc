// Attention: spans of odd and whole lengths, with and without an ancestor, several ancestors, one row, one key, scores
// of which one outweighs all others, and passes without gradients.
#include <ATen/ATen.h>

#include <cmath>

#include "absl/strings/str_cat.h"
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
          {.name = "one query", .families = {{320, {1}}}},
          {.name = "large scores", .families = {{320, {64}}}, .query_scale = 30},
          {.name = "a forward pass", .families = mixed, .forward_only = true}};
}

struct Heads {
  int64_t heads, kv_heads, head_size;
};

AttentionBatch MakeBatch(Operands& operands, const AttentionCase& c, const Heads& heads) {
  AttentionBatch batch;
  batch.layout = c.layout;
  batch.scale = 1 / std::sqrt(static_cast<double>(heads.head_size));
  int64_t begin = 0;
  for (const Family& family : c.families) {
    const int64_t ancestor = family.ancestor_rows > 0 ? static_cast<int64_t>(batch.ancestors.size()) : -1;
    if (ancestor >= 0) {
      const std::vector<int64_t> sizes = {family.ancestor_rows, heads.kv_heads, heads.head_size};
      AncestorKv kv{operands.Normal(sizes, Numbers::kRun), operands.Normal(sizes, Numbers::kRun), {}, {}};
      if (!c.forward_only) {
        kv.gk_CKE =
            operands.AddedTo(absl::StrCat("gk_CKE ", ancestor), sizes, Numbers::kAcc, 0.1, c.key_gradient_size());
        kv.gv_CKE =
            operands.AddedTo(absl::StrCat("gv_CKE ", ancestor), sizes, Numbers::kAcc, 0.1, c.query_gradient_size());
      }
      batch.ancestors.push_back(kv);
    }
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
  const at::Tensor q =
      operands.Normal({heads.heads, rows, heads.head_size}, Numbers::kRun, c.query_scale, side.queries_layout());
  const at::Tensor k = operands.Normal({rows, heads.kv_heads, heads.head_size}, Numbers::kRun);
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
  for (const AttentionCase& c : batches) add(c, {shape.num_heads, shape.num_kv_heads, shape.head_size});
  const AttentionCase& mixed = batches.at(4);
  for (const int64_t size : {64, 128}) {
    add(mixed, {6, 2, size});
    add(mixed, {2, 2, size});
  }
  return cases;
}

}  // namespace stemma::worker::self_check
