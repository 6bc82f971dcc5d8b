// The copy engine of a CUDA device: one stream for each direction, an event for each ticket. CUDA's runtime API only.
// Built where the CUDA toolkit is.
//
// A copy starts after what the compute stream was given before: out, because that work makes the bytes; in, because the
// device memory it fills may still be read by queued work of an owner that has freed it (a caching allocator gives
// memory away in the order of its stream, not of the device). Wait blocks the host, and Done is asked by the host, so
// what is queued afterwards comes after the copy on every stream, and the caller may reuse or free either end, host
// memory too. ComputeWaits blocks the compute stream instead. Device memory that is freed then is used again by work
// that is queued on it later; a block of host memory is written again by a copy that starts later, and so behind a
// point of the compute stream that lies behind this copy. Work that is queued already goes on meanwhile.
//
// Copies of one direction run in the order they were started: Wait waits for those before it, nothing is overtaken.
// Cancel waits too, since a copy that CUDA was given cannot be taken back.
// Host ends should lie in page-locked memory (worker/memory/cuda_page_lock.h): CUDA copies to and from other memory
// through a buffer of its own, and StartCopyOut and StartCopyIn may then block until the compute stream reaches that
// point.
//
// Engine thread only, with the device of the engine's creation current. Errors name CUDA's; one of a start is reported
// by Done or Wait of its ticket.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "worker/memory/copy_engine.h"

namespace stemma::worker {

class CudaCopyEngine final : public CopyEngine {
 public:
  // Creates it on the current device. `compute`: the stream of all work on the copied device memory; outlives the
  // engine. Errors: no device, or no resources for streams and events.
  static absl::StatusOr<std::unique_ptr<CudaCopyEngine>> Create(cudaStream_t compute);
  // Waits for what was started; whoever holds a ticket must have ended it.
  ~CudaCopyEngine() override;
  CudaCopyEngine(const CudaCopyEngine&) = delete;
  CudaCopyEngine& operator=(const CudaCopyEngine&) = delete;

  CopyTicket StartCopyOut(std::vector<CopySpan> spans) override {
    return Start(spans, cudaMemcpyDeviceToHost, out_stream_);
  }
  CopyTicket StartCopyIn(std::vector<CopySpan> spans) override {
    return Start(spans, cudaMemcpyHostToDevice, in_stream_);
  }
  absl::StatusOr<bool> Done(CopyTicket ticket) override;
  absl::Status Wait(CopyTicket ticket) override;
  absl::Status ComputeWaits(CopyTicket ticket) override;
  void Cancel(CopyTicket ticket) override;

 private:
  struct Copy {
    cudaEvent_t ended;  // recorded behind the last span; null: the start failed, and nothing of it runs any more
    absl::Status start;
  };

  explicit CudaCopyEngine(cudaStream_t compute) : compute_(compute) {}

  absl::Status MakeStreams();
  CopyTicket Start(const std::vector<CopySpan>& spans, cudaMemcpyKind kind, cudaStream_t stream);
  absl::Status Queue(const std::vector<CopySpan>& spans, cudaMemcpyKind kind, cudaStream_t stream, cudaEvent_t ended);
  absl::StatusOr<cudaEvent_t> TakeEvent();
  const Copy& At(CopyTicket ticket) const;
  void End(CopyTicket ticket);

  const cudaStream_t compute_;
  cudaStream_t out_stream_ = nullptr, in_stream_ = nullptr;
  cudaEvent_t computed_ = nullptr;  // recorded on the compute stream by each start
  std::vector<cudaEvent_t> free_events_;
  std::unordered_map<CopyTicket, Copy> copies_;  // not ended
  CopyTicket next_ticket_ = 0;
};

}  // namespace stemma::worker
