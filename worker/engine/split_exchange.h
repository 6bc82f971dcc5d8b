// What the ranks of a split group send each other: K/V from the owner to a helper, gK/gV back (docs/parallelism.md, "A
// hot group"). Each call is one exchange of a pair: a word, and behind it the tensors of all layers.
//
// The word is 0 where the values follow. A rank that has given its pass up sends the code of its absl::Status instead,
// and nothing follows: the other gives its pass up too. So no rank waits for one that has stopped, and none is left in
// the middle of a tensor: whatever can fail without the other rank (memory, most of all) is done before the word.
//
// Called by the pass runner on the engine thread. Errors of all calls: Unavailable - the other rank is gone, or this
// one cannot finish what it has begun, and the generation ends. Aborted - the other rank has given its pass up: the
// exchange is over. Any other, and any exception: the exchange has not begun and is still to be walked, by GiveUp or
// Drop.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "worker/model/hot_set.h"
#include "worker/model/layer_context.h"
#include "worker/parallel/communicator.h"

namespace stemma::worker {

class SplitExchange {
 public:
  SplitExchange(Communicator& data, const LayerContext& context) : data_(data), context_(context) {}

  absl::Status SendKv(int to, const LocalHotSet& kv);
  // Fills the tensors of `kv`.
  absl::Status ReceiveKv(int from, LocalHotSet& kv);
  // Goes from the last layer to the first, as Phase C reads them.
  absl::Status SendGradients(int to, const LocalHotSet& kv);
  // Adds to the gradients of `kv`, one layer at a time.
  absl::Status ReceiveGradients(int from, LocalHotSet& kv);

  // Tells the receiver that this rank has given its pass up, because of `cause`.
  absl::Status GiveUp(int to, const absl::Status& cause);
  // Takes the word, and the values of a prefix of so many rows if they follow.
  absl::Status DropKv(int from, int64_t rows);
  absl::Status DropGradients(int from, int64_t rows);

  int64_t sent_bytes() const { return sent_bytes_; }  // K/V and gK/gV, without the words

 private:
  absl::Status SendWord(int to, int64_t word);
  absl::Status ReceiveWord(int from);
  absl::Status Send(const char* name, const at::Tensor& values, int to);
  absl::Status Drop(const char* first, const char* second, int from, at::Tensor scratch);
  // Memory for one tensor of a layer.
  at::Tensor Scratch(int64_t rows, at::ScalarType dtype) const;

  Communicator& data_;
  const LayerContext& context_;
  int64_t sent_bytes_ = 0;
};

}  // namespace stemma::worker
