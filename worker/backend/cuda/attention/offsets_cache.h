// OffsetsCache: int32 offsets of packed sequences on the device, sent once for each list of numbers.
//
// The layers of a pass ask for the same few lists again and again, each with a batch of its own: lists are known by
// their content. Owned by the thread that computes. A list that was not asked for lately is forgotten; whoever holds
// its tensor keeps it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <list>
#include <vector>

namespace stemma::worker::cuda {

class OffsetsCache {
 public:
  // Backend::send: a copy that the caller does not wait for.
  using Send = at::Tensor (*)(const at::Tensor& host, at::Device device);

  explicit OffsetsCache(Send send) : send_(send) {}

  at::Tensor Get(const std::vector<int32_t>& offsets, at::Device device);

 private:
  // Three lists for each of the waves that a pipeline has under way.
  static constexpr size_t kCapacity = 48;

  struct Entry {
    std::vector<int32_t> offsets;
    at::Device device;
    at::Tensor tensor;
  };

  const Send send_;
  std::list<Entry> entries_;  // the one asked for last first
};

}  // namespace stemma::worker::cuda
