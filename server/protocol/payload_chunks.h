// Cuts the groups of a request that one rank computes into messages for it, one at a time as the stream takes them.
//
// A chunk holds whole groups, or some rollouts of one: a group that does not fit is continued under its uid without
// prompt_tokens. A chunk stays below chunk_bytes unless one rollout alone is larger.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/admission/training_request.h"
#include "stemma/internal/v1/worker.pb.h"

namespace stemma::server {

inline constexpr uint64_t kChunkBytes = 3u << 20;  // our senders stay below 4 MiB a message

class PayloadChunks {
 public:
  // `groups`: indices into the request's, ascending.
  PayloadChunks(std::string id, std::shared_ptr<const TrainingRequest> request, std::vector<uint32_t> groups,
                uint64_t chunk_bytes = kChunkBytes)
      : id_(std::move(id)), request_(std::move(request)), groups_(std::move(groups)), chunk_bytes_(chunk_bytes) {}

  bool done() const { return done_; }
  // REQUIRES: !done(). The last chunk has `last`.
  internal::v1::PayloadChunk Next();

 private:
  std::string id_;
  std::shared_ptr<const TrainingRequest> request_;
  std::vector<uint32_t> groups_;
  uint64_t chunk_bytes_;
  size_t next_ = 0;           // of groups_
  int rollout_ = 0;           // the next one of that group
  bool prompt_sent_ = false;  // of that group
  bool done_ = false;
};

}  // namespace stemma::server
