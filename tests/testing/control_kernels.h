// Wrong attention kernels by name, for the probe: an engine that runs on one of them must fail the comparisons that the
// right one passes.
//
//   partial_both, partial_output, partial_lse   see wrong_attention.h
//   dropped_gk           the ancestor's dK is lost
//   bf16_gk              an ancestor's dK and dV are summed over the waves in bf16; for one step
//   restarted_position   a suffix counts its positions from 0: its queries are rotated back by the ancestor's length
#pragma once

#include <memory>
#include <string>

#include "tests/testing/namespaces.h"
#include "worker/backend/cpu/attention_kernel.h"

namespace stemma::testing {

// "none" is the product's kernel. Null: unknown name.
std::unique_ptr<AttentionKernel> MakeControlKernel(const std::string& name, double rope_theta);

}  // namespace stemma::testing
