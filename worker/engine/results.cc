#include "worker/engine/results.h"

#include <ATen/ops/cat.h>

#include <utility>
#include <vector>

#include "common/base/message_sizes.h"

namespace stemma::worker {

std::string ResultSender::Encode(std::span<const double> values) const {
  if (float64_) return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
  std::string bytes;
  bytes.reserve(values.size() * sizeof(float));
  for (const double value : values) {
    const float narrow = static_cast<float>(value);
    bytes.append(reinterpret_cast<const char*>(&narrow), sizeof(narrow));
  }
  return bytes;
}

void ResultSender::Add(const std::string& uid, const std::string& rollout_id, std::span<const double> log_prob,
                       std::span<const double> entropy) {
  constexpr size_t kFramingBytes = 64;  // of a rollout and its fields
  const size_t bytes = rollout_id.size() + kFramingBytes +
                       (log_prob.size() + entropy.size()) * (float64_ ? sizeof(double) : sizeof(float));
  if (chunk_.group().uid() != uid || chunk_bytes_ + bytes > kResultChunkBytes) Flush();
  chunk_.set_id(id_);
  chunk_.mutable_group()->set_uid(uid);
  chunk_.mutable_group()->set_dtype(float64_ ? v1::FLOAT64 : v1::FLOAT32);
  v1::RolloutResult& result = *chunk_.mutable_group()->add_rollouts();
  result.set_rollout_id(rollout_id);
  result.set_log_probs(Encode(log_prob));
  result.set_entropy(Encode(entropy));
  chunk_bytes_ += bytes;
}

void ResultSender::Flush() {
  if (chunk_.group().rollouts_size() > 0) send_(std::move(chunk_));
  chunk_ = {};
  chunk_bytes_ = 0;
}

MemberResult SendResults(ResultSender* sender, const Payload& payload) {
  return [sender, &payload](const MemberRows& m, std::span<const double> log_probs, std::span<const double> entropy) {
    if (sender == nullptr) return;
    const v1::PromptGroup& group = payload.groups[m.group];
    sender->Add(group.uid(), group.rollouts(static_cast<int>(m.rollout)).rollout_id(), log_probs, entropy);
  };
}

at::Tensor PackResults(const HeadOutput& head, const at::Tensor& sums) {
  std::vector<at::Tensor> parts = {head.log_prob_T};
  for (const at::Tensor& part : {head.entropy_T, sums}) {
    if (part.defined()) parts.push_back(part);
  }
  return at::cat(parts, 0);
}

}  // namespace stemma::worker
