// FA2's calls in plain ATen ops on the host, in any dtype: its layouts, its traps, and a log of what was asked.
//
// Traps: an LSE that is read by its pointer; zero keys, for which out is 0 and the LSE +inf; a causal rectangle that is
// aligned at its last key; dk and dv rounded to the input's dtype for each query head before heads are summed; rows
// taken for the batch where the longest sequence is one row; no backward without the forward's random state.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/testing/namespaces.h"
#include "worker/backend/cuda/attention/flash_calls.h"

namespace stemma::testing {

struct AskedCall {
  bool forward, packed, causal;
  int64_t batch, rows, keys;  // a packed call's batch is its sequences; all rows and keys
  const void* queries;
  bool shared_keys = false;                // every entry of the batch has the same: a stride of 0
  double least_lse = 0, greatest_lse = 0;  // of a forward
};

class FakeFlashCalls : public worker::cuda::FlashCalls {
 public:
  bool Takes(at::ScalarType dtype, int64_t head_size) const override;
  worker::cuda::CallOutput Forward(const worker::cuda::AttentionCall& call) const override;
  worker::cuda::CallGradients Backward(const worker::cuda::AttentionCall& call,
                                       const worker::cuda::CallBackward& saved) const override;

  const std::vector<AskedCall>& asked() const { return asked_; }
  int64_t Count(bool forward) const;
  void Clear() { asked_.clear(); }

 private:
  mutable std::vector<AskedCall> asked_;
};

enum class WrongBackward {
  kOwnOutputAndLse,  // each call with its own output and LSE and its weighted dout: the LSE's gradient is dropped
  kOwnOutput,        // merged LSE, the call's own output
  kOwnLse,           // merged output, the call's own LSE
};

// Exact in the forward pass and where a row is in one call only.
class WrongFlashCalls final : public FakeFlashCalls {
 public:
  explicit WrongFlashCalls(WrongBackward wrong) : wrong_(wrong) {}
  worker::cuda::CallGradients Backward(const worker::cuda::AttentionCall& call,
                                       const worker::cuda::CallBackward& saved) const override;

 private:
  const WrongBackward wrong_;
};

}  // namespace stemma::testing
