// Weights by the names of their Hugging Face files.
#pragma once

#include <ATen/core/Tensor.h>
#include <glog/logging.h>

#include <algorithm>
#include <string>

#include "tests/testing/namespaces.h"
#include "worker/model/weights.h"

namespace stemma::testing {

// CHECKs that there is such a tensor.
inline const HfTensor& HfTensorOf(const Weights& weights, const std::string& name) {
  const auto& all = weights.hf_tensors;
  const auto it = std::find_if(all.begin(), all.end(), [&](const HfTensor& tensor) { return tensor.name == name; });
  CHECK(it != all.end()) << name;
  return *it;
}

// Returns the rows of a tensor in its parameter's master, which this rank has as a whole.
inline at::Tensor MasterSlice(const Weights& weights, const HfTensor& tensor) {
  const Parameter& p = weights.at(tensor.parameter);
  CHECK_EQ(p.master.numel(), p.weight.numel()) << p.name << ": this rank owns a part of the master";
  return p.master.slice(0, tensor.row_begin, tensor.row_end);
}

}  // namespace stemma::testing
