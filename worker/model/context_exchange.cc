#include "worker/model/context_exchange.h"

#include <ATen/ops/empty.h>
#include <glog/logging.h>

#include <utility>
#include <vector>

#include "worker/parallel/collective_error.h"

namespace stemma::worker {

PendingExchange PendingExchange::Gather(Communicator& cp, const at::Tensor& part, const char* name) {
  std::vector<int64_t> shape = {cp.size()};
  shape.insert(shape.end(), part.sizes().begin(), part.sizes().end());
  PendingExchange pending(part, at::empty(shape, part.options()));
  pending.collective_ = cp.StartAllGather(name, pending.input_, pending.output_);
  return pending;
}

PendingExchange PendingExchange::Sum(Communicator& cp, const at::Tensor& parts, const char* name) {
  CHECK_EQ(parts.size(0), cp.size());
  PendingExchange pending(parts, at::empty(parts.sizes().slice(1), parts.options()));
  pending.collective_ = cp.StartReduceScatterSum(name, pending.input_, pending.output_);
  return pending;
}

PendingExchange::~PendingExchange() {
  if (collective_ == nullptr) return;
  const absl::Status status = collective_->Wait();
  LOG_IF(WARNING, !status.ok()) << "an exchange that nobody reads: " << status;
}

at::Tensor PendingExchange::Wait() {
  CHECK(collective_ != nullptr) << "waited for already";
  ThrowUnlessOk(std::exchange(collective_, nullptr)->Wait());
  input_.reset();
  return std::move(output_);
}

}  // namespace stemma::worker
