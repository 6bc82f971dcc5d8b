// Which experts a layer's rows pass, with which weights, and the rows' way to them and back. Called by worker/model.
//
// A row's choice depends on that row alone: no expert has a capacity, and no token is dropped. So a prefix's rows
// choose once what they would choose in every rollout, and the method stays exact (paper, Appendix B). Of experts that
// are as probable, those with the lowest numbers are chosen, on every device: in bf16 that decides in one of 20 rows.
//
// Shapes: U experts that a row uses, A assignments of a row to an expert that is here: T·U where all are.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "common/model/model_config.h"

namespace stemma::worker {

struct Routing {
  at::Tensor experts_TU;  // int64, the most probable first
  at::Tensor weights_TU;  // of their outputs in their sum; fp32 or fp64
  at::Tensor probs_TX;    // of all experts, where the weights are some of them; undefined where weights sum to one
};

// Chooses by the router's products as they are; makes the weights from them in the accumulate dtype. Ranks that have
// the same bits of the products choose the same experts, whatever their processors make of a softmax.
Routing RouteForward(at::Tensor logits_TX, const Experts& experts);

// Returns dlogits [T, X], in the accumulate dtype.
at::Tensor RouteBackward(const Routing& routing, const at::Tensor& dweights_TU, const Experts& experts);

// The experts whose weights are here: all, or where ranks have experts of their own some that follow each other.
struct ExpertRange {
  int64_t begin = 0, count = 0;
};

// The assignments to experts that are here, in the order of the experts, those of one in the order of rows.
struct Dispatch {
  at::Tensor rows_A;          // int64: whose row each is of
  at::Tensor choices_A;       // int64: which choice of all rows' it is, t·U + u
  at::Tensor places_TU;       // int64: where each choice stands among them; A where its expert is not here
  at::Tensor chosen_TU;       // int64, on the host: the experts, wherever they are
  std::vector<int64_t> ends;  // of the assignments of each expert that is here

  int64_t assignments() const { return ends.back(); }
  bool has_all() const { return assignments() == places_TU.numel(); }
  // Returns how many rows of zeros stand behind what experts give, for choices whose experts are not here.
  int64_t zero_rows() const { return has_all() ? 0 : 1; }
};

// Sorts on the host: a device's choices are waited for.
Dispatch MakeDispatch(const at::Tensor& experts_TU, const ExpertRange& here);

// Returns a copy of its row for each assignment: [T, D] -> [A, D].
at::Tensor RowsForExperts(const at::Tensor& x_TD, const Dispatch& dispatch);

// Returns the sum of each row's assignments, added in the accumulate dtype, the most probable expert's first: [A + the
// dispatch's zero rows, D] -> [T, D].
at::Tensor SumOfExperts(const at::Tensor& y_AD, const Dispatch& dispatch);

// Return values of [T, U] in the order of the dispatch, and back: 0 where an expert is not here.
at::Tensor ForExperts(const at::Tensor& values_TU, const Dispatch& dispatch);
at::Tensor FromExperts(const at::Tensor& values_A, const Dispatch& dispatch);

}  // namespace stemma::worker
