// Per-rollout results on their way to the server: encoded as the API has them, in messages of at most
// kResultChunkBytes (common/base/message_sizes.h); one rollout's result that is larger has a message of its own.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <span>
#include <string>

#include "stemma/internal/v1/worker.pb.h"
#include "worker/engine/live_wave.h"
#include "worker/engine/payload.h"
#include "worker/ops/head.h"

namespace stemma::worker {

class ResultSender {
 public:
  using Send = std::function<void(internal::v1::ResultChunk)>;
  // float64: log-probs of an fp64 run.
  ResultSender(std::string id, bool float64, Send send)
      : id_(std::move(id)), float64_(float64), send_(std::move(send)) {}

  void Add(const std::string& uid, const std::string& rollout_id, std::span<const double> log_prob,
           std::span<const double> entropy);
  void Flush();

 private:
  std::string Encode(std::span<const double> values) const;

  const std::string id_;
  const bool float64_;
  const Send send_;
  internal::v1::ResultChunk chunk_;
  size_t chunk_bytes_ = 0;
};

// Returns what sends each rollout's numbers of a pass; null: they are sent to nobody. Both outlive it.
MemberResult SendResults(ResultSender* sender, const Payload& payload);

// Packs the numbers of a wave that leave the device into one tensor: log-probs, entropies (may be undefined), loss sums
// (may be undefined).
at::Tensor PackResults(const HeadOutput& head, const at::Tensor& sums);

}  // namespace stemma::worker
