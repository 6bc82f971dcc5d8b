#include "server/protocol/payload_chunks.h"

#include "glog/logging.h"

namespace stemma::server {

internal::v1::PayloadChunk PayloadChunks::Next() {
  CHECK(!done_);
  internal::v1::PayloadChunk chunk;
  chunk.set_id(id_);
  uint64_t bytes = 0;
  for (; next_ < groups_.size(); ++next_, rollout_ = 0, prompt_sent_ = false) {
    const v1::PromptGroup& from = request_->groups.at(groups_[next_]);
    const uint64_t prompt_bytes = prompt_sent_ ? 0 : from.prompt_tokens().size();
    if (bytes > 0 && bytes + prompt_bytes > chunk_bytes_) return chunk;
    chunk.add_group_indices(groups_[next_]);
    v1::PromptGroup* to = chunk.add_groups();
    to->set_uid(from.uid());
    if (!prompt_sent_) {
      prompt_sent_ = true;
      to->set_prompt_tokens(from.prompt_tokens());
      if (from.has_stat_group()) to->set_stat_group(from.stat_group());
    }
    bytes += prompt_bytes;
    for (; rollout_ < from.rollouts_size(); ++rollout_) {
      const uint64_t rollout_bytes = from.rollouts(rollout_).ByteSizeLong();
      if (bytes > 0 && bytes + rollout_bytes > chunk_bytes_) return chunk;
      *to->add_rollouts() = from.rollouts(rollout_);
      bytes += rollout_bytes;
    }
  }
  chunk.set_last(true);
  done_ = true;
  return chunk;
}

}  // namespace stemma::server
