// y = x W_eᵀ for rows that lie expert by expert, each expert e with a weight of its own, and its gradients. Called by
// worker/model.
//
// Expert e has the rows from ends[e - 1] (the first: 0) to ends[e], which may be none. Each expert's product is one
// GEMM, so that a result depends on the expert's own rows alone.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "worker/backend/backend.h"

namespace stemma::worker {

// [A, I] -> [A, O], and so many rows of zeros after them. `weight_XOI` has an expert for each of `ends`.
at::Tensor GroupedLinearForward(const at::Tensor& x_AI, const at::Tensor& weight_XOI, const std::vector<int64_t>& ends,
                                int64_t zero_rows = 0);

// [A, O] -> [A, I], and so many rows of zeros after them.
at::Tensor GroupedLinearBackwardInput(const at::Tensor& dy_AO, const at::Tensor& weight_XOI,
                                      const std::vector<int64_t>& ends, int64_t zero_rows = 0);

// dweight_XOI[e] += dyᵀ x over the rows of e, as LinearBackwardWeight does.
void GroupedLinearBackwardWeight(const Backend& backend, const at::Tensor& dy_AO, const at::Tensor& x_AI,
                                 const at::Tensor& dweight_XOI, const std::vector<int64_t>& ends);

}  // namespace stemma::worker
