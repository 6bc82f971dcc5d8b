// Attention that rounds where flash kernels on a GPU do: what the self-check must not refuse.
//
// A part's probabilities go into the product with V in bf16, and its output leaves in bf16; the merge reads that. In
// the backward, probabilities and their gradients are bf16 in the products, and dK and dV are bf16 for each query head
// before heads of a group are summed, and again after; the two parts' dQ are bf16.
#pragma once

#include <memory>

#include "tests/testing/namespaces.h"
#include "worker/backend/attention.h"

namespace stemma::testing {

std::shared_ptr<const AttentionOp> MakeRoundingAttention();

}  // namespace stemma::testing
