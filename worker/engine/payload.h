// Payloads in flight: this rank's groups of a request, held once, and what was computed about them before the first
// step (log-probs for `old` and `ref`). Owned by the engine; not thread safe.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "stemma/internal/v1/worker.pb.h"
#include "worker/schedule/wave_rows.h"

namespace stemma::worker {

inline constexpr uint32_t kGroupIndicesMax = uint32_t{1} << 24;  // of a request

// [group][rollout]: log-probs of the response's tokens; empty where the rollout did not run.
using EntryLogProbs = std::vector<std::vector<std::vector<double>>>;

struct Payload {
  // By index in the request, up to the last one that this rank has; another rank's groups are empty: no tokens, no
  // rollouts.
  std::vector<v1::PromptGroup> groups;
  uint64_t bytes = 0;  // of the chunks as messages
  bool complete = false;
  bool refused = false;                                  // a chunk was: what follows is, until the payload is dropped
  std::vector<GroupShape> shapes;                        // once complete
  std::map<std::string, EntryLogProbs> entry_log_probs;  // by the name of the weights (LogProbSource.weights)
  double log_probs_s = 0;                                // that they took

  // Null: none were computed with the weights of this name.
  const std::vector<double>* FindEntryLogProbs(const std::string& weights, size_t group, size_t rollout) const;
};

class PayloadStore {
 public:
  // Chunks of one id in order, group indices ascending; a group without prompt_tokens continues the last one, under its
  // index and uid. Errors: InvalidArgument; the id is then never complete.
  absl::Status Add(internal::v1::PayloadChunk chunk);
  // Gives the memory of a large one back to the system: it lies all over the heap, which would keep it.
  void Drop(const std::string& id);
  // Errors: NotFound - unknown, or chunks are missing.
  absl::StatusOr<Payload*> FindComplete(const std::string& id);

 private:
  std::map<std::string, Payload> payloads_;
};

}  // namespace stemma::worker
