// The start-up self-check: whether each fused kernel of a device does on it what plain ATen ops do.
//
// Kernels are written and tested on machines that lack the device. So before a worker computes with them, every entry
// of the table and the attention op run on small operands; what they write is compared with the composed backend's
// answer in fp64 on the same device. An entry that is refused is replaced by the composed one, by name, and the worker
// says so. Works with any two backends: tests run it on the CPU. Called by the device's library before the first model
// is loaded.
//
// Names of kernels are those of the table's entries, "attention", and those of the candidate's faster attentions.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "worker/backend/backend.h"

namespace stemma::worker {

// The model's attention, which some of the operands are shaped after.
struct CheckShape {
  int64_t num_heads = 8, num_kv_heads = 2, head_size = 128;

  bool operator==(const CheckShape&) const = default;
};

struct CheckSetting {
  at::ScalarType dtype;  // of the run
  CheckShape shape = {};
  bool large_cases = true;  // those that fill a device, and take a CPU long
};

// What an entry is compared with, and what replaces it.
struct Reference {
  Kernels kernels;
  std::shared_ptr<const AttentionOp> attention;
};

struct CheckResult {
  std::string kernel;
  bool admitted = true;
  double worst_error = 0, tolerance = 0;  // of the operand that came nearest to its tolerance, or passed it
  std::string reason = {};                // of a refusal: which operands, what was seen
  bool threw = false;                     // a call of it did: what may pass, and is not kept in a record
  double seconds = 0;                     // that both sides and the comparison took

  bool operator==(const CheckResult&) const = default;
};

// Returns one result for each entry, in the order of the table, then attention and the candidate's faster ones. An
// entry that throws is refused. Throws c10::OutOfMemoryError; and c10::Error where the reference fails, as everything
// does on a device that a kernel has broken.
std::vector<CheckResult> CheckBackend(const Backend& candidate, const Reference& reference,
                                      const CheckSetting& setting);

// Checks an attention op alone, under a name of its own: one strategy of several.
CheckResult CheckAttention(const std::string& name, const AttentionOp& candidate, const Backend& backend,
                           const Reference& reference, const CheckSetting& setting);

// Returns the candidate with the reference's entry in the place of each that is refused, and of those that belong
// together with it; and says which in kernels_off. Attention is the first faster one that is admitted, if any.
Backend Admit(Backend candidate, const Reference& reference, const std::vector<CheckResult>& results);

// The names of all results but those of faster attentions, in order.
std::vector<std::string> CheckedKernels();

}  // namespace stemma::worker
