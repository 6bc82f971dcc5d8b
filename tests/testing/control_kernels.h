// Attention kernels with one known mistake each, for negative controls: an engine that runs on one of them must fail the
// comparisons that the right one passes.
//
//   partial_both         each part's backward gets its own output and log-sum-exp, and dO weighted by its share: what
//                        autograd through the merge computes when the log-sum-exp is taken for a constant
//   partial_output       merged log-sum-exp, own output
//   partial_lse          merged output, own log-sum-exp
//   dropped_gk           the ancestor's dK is lost
//   restarted_position   a suffix counts its positions from 0: its queries are rotated back by the ancestor's length
//
// They remember partial results by the address of q, so a wave may hold one group only.
#pragma once

#include <memory>
#include <string>

#include "worker/ops/attention.h"

namespace stemma::testing {

// "none" is the product's kernel. Null: unknown name.
std::unique_ptr<AttentionKernel> MakeControlKernel(const std::string& name, double rope_theta);

}  // namespace stemma::testing
