// Which experts a layer's rows pass, with which weights, and the rows' way to them and back. Called by worker/model.
//
// A row's choice depends on that row alone: no expert has a capacity, and no token is dropped. So a prefix's rows
// choose once what they would choose in every rollout, and the method stays exact (paper, Appendix B). Of experts that
// are as probable, those with the lowest numbers are chosen, on every device: in bf16 that decides in one of 20 rows.
//
// Shapes: U experts that a row uses, A = T·U assignments of a row to an expert.
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

// The assignments in the order of their experts, those of one expert in the order of rows.
struct Dispatch {
  at::Tensor rows_A;          // int64: whose each is
  at::Tensor places_A;        // int64: where the u-th of row t stands among them, at t·U + u
  std::vector<int64_t> ends;  // of each expert's
};

// Sorts on the host: a device's choices are waited for.
Dispatch MakeDispatch(const at::Tensor& experts_TU, int64_t num_experts);

// Returns a copy of its row for each assignment: [T, D] -> [A, D].
at::Tensor RowsForExperts(const at::Tensor& x_TD, const Dispatch& dispatch);

// Returns the sum of each row's U assignments, added in the accumulate dtype, the most probable expert's first:
// [A, D] -> [T, D].
at::Tensor SumOfExperts(const at::Tensor& y_AD, const Dispatch& dispatch, int64_t per_token);

// Return values of [T, U] in the order of the dispatch, and back.
at::Tensor ForExperts(const at::Tensor& values_TU, const Dispatch& dispatch);
at::Tensor FromExperts(const at::Tensor& values_A, const Dispatch& dispatch, int64_t per_token);

}  // namespace stemma::worker
