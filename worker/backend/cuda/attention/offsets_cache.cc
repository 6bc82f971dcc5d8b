#include "worker/backend/cuda/attention/offsets_cache.h"

#include <ATen/ops/empty.h>

#include <algorithm>

namespace stemma::worker::cuda {

at::Tensor OffsetsCache::Get(const std::vector<int32_t>& offsets, at::Device device) {
  const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return entry.device == device && entry.offsets == offsets;
  });
  if (found != entries_.end()) {
    entries_.splice(entries_.begin(), entries_, found);
    return found->tensor;
  }
  const at::Tensor host = at::empty({static_cast<int64_t>(offsets.size())}, at::TensorOptions(at::kInt));
  std::copy(offsets.begin(), offsets.end(), host.mutable_data_ptr<int32_t>());
  entries_.push_front({offsets, device, send_(host, device)});
  if (entries_.size() > kCapacity) entries_.pop_back();
  return entries_.front().tensor;
}

}  // namespace stemma::worker::cuda
