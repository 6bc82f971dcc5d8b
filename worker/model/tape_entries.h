// The tensors of a block's tape under the names that common/cost/tape_policy.h gives them, so that one list decides
// what a policy drops, what is offloaded, and what the byte formula counts. Called by worker/model and its tests.
#pragma once

#include <ATen/core/Tensor.h>
#include <glog/logging.h>

#include <utility>
#include <vector>

#include "common/cost/tape_policy.h"

namespace stemma::worker {

// K and V are no entries: they belong to the hot set, and stay on the device under every policy.
struct TapeEntry {
  TapeTensor name;
  at::Tensor* tensor;  // of the tape; undefined where the family has none, or it was dropped
};

// Frees the tensors of that name, unless the policy keeps them.
template <typename Tape>
void DropUnlessKept(Tape& tape, TapeTensor name, v1::TapePolicy policy) {
  if (Keeps(policy, name)) return;
  for (const TapeEntry& entry : tape.Entries()) {
    if (entry.name == name) entry.tensor->reset();
  }
}

// Moves the tensors of a tape out, in the order of its entries; PutTensors moves them back.
template <typename Tape>
std::vector<at::Tensor> TakeTensors(Tape& tape) {
  std::vector<at::Tensor> tensors;
  for (const TapeEntry& entry : tape.Entries()) tensors.push_back(std::exchange(*entry.tensor, {}));
  return tensors;
}
template <typename Tape>
void PutTensors(Tape& tape, std::vector<at::Tensor> tensors) {
  const std::vector<TapeEntry> entries = tape.Entries();
  CHECK_EQ(tensors.size(), entries.size());
  for (size_t i = 0; i < entries.size(); ++i) *entries[i].tensor = std::move(tensors[i]);
}

}  // namespace stemma::worker
