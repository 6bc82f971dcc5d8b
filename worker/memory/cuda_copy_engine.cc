#include "worker/memory/cuda_copy_engine.h"

#include <glog/logging.h>

#include <cstddef>
#include <utility>

#include "common/base/status_macros.h"
#include "worker/memory/cuda_status.h"

namespace stemma::worker {

absl::StatusOr<std::unique_ptr<CudaCopyEngine>> CudaCopyEngine::Create(cudaStream_t compute) {
  std::unique_ptr<CudaCopyEngine> engine(new CudaCopyEngine(compute));
  RETURN_IF_ERROR(engine->MakeStreams());
  return engine;
}

absl::Status CudaCopyEngine::MakeStreams() {
  // Non-blocking: the default stream, which others may use, neither waits for copies nor holds them up.
  for (cudaStream_t* stream : {&out_stream_, &in_stream_}) {
    RETURN_IF_ERROR(CudaStatus(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags"));
  }
  return CudaStatus(cudaEventCreateWithFlags(&computed_, cudaEventDisableTiming), "cudaEventCreateWithFlags");
}

// Errors of a device that failed before were reported by then.
CudaCopyEngine::~CudaCopyEngine() {
  for (const cudaStream_t stream : {out_stream_, in_stream_}) {
    if (stream == nullptr) continue;
    cudaStreamSynchronize(stream);
    cudaStreamDestroy(stream);
  }
  for (const auto& [ticket, copy] : copies_) {
    if (copy.ended != nullptr) cudaEventDestroy(copy.ended);
  }
  for (const cudaEvent_t event : free_events_) cudaEventDestroy(event);
  if (computed_ != nullptr) cudaEventDestroy(computed_);
}

CopyTicket CudaCopyEngine::Start(const std::vector<CopySpan>& spans, cudaMemcpyKind kind, cudaStream_t stream) {
  Copy copy{nullptr, absl::OkStatus()};
  absl::StatusOr<cudaEvent_t> ended = TakeEvent();
  copy.start = ended.status();
  if (ended.ok()) {
    copy.start = Queue(spans, kind, stream, *ended);
    if (copy.start.ok()) {
      copy.ended = *ended;
    } else {
      cudaStreamSynchronize(stream);  // the spans before the one that failed
      free_events_.push_back(*ended);
    }
  }
  copies_.emplace(next_ticket_, std::move(copy));
  return next_ticket_++;
}

absl::Status CudaCopyEngine::Queue(const std::vector<CopySpan>& spans, cudaMemcpyKind kind, cudaStream_t stream,
                                   cudaEvent_t ended) {
  RETURN_IF_ERROR(CudaStatus(cudaEventRecord(computed_, compute_), "cudaEventRecord"));
  RETURN_IF_ERROR(CudaStatus(cudaStreamWaitEvent(stream, computed_, /*flags=*/0), "cudaStreamWaitEvent"));
  for (const CopySpan& span : spans) {
    RETURN_IF_ERROR(CudaStatus(cudaMemcpyAsync(span.to, span.from, static_cast<size_t>(span.bytes), kind, stream),
                               "cudaMemcpyAsync"));
  }
  return CudaStatus(cudaEventRecord(ended, stream), "cudaEventRecord");
}

absl::StatusOr<bool> CudaCopyEngine::Done(CopyTicket ticket) {
  const Copy& copy = At(ticket);
  absl::Status status = copy.start;
  if (status.ok()) {
    const cudaError_t error = cudaEventQuery(copy.ended);
    if (error == cudaErrorNotReady) {
      (void)cudaGetLastError();  // it is an answer, and no error of the next launch
      return false;
    }
    status = CudaStatus(error, "cudaEventQuery");
  }
  End(ticket);
  if (!status.ok()) return status;
  return true;
}

absl::Status CudaCopyEngine::Wait(CopyTicket ticket) {
  const Copy& copy = At(ticket);
  absl::Status status =
      copy.start.ok() ? CudaStatus(cudaEventSynchronize(copy.ended), "cudaEventSynchronize") : copy.start;
  End(ticket);
  return status;
}

absl::Status CudaCopyEngine::ComputeWaits(CopyTicket ticket) {
  const Copy& copy = At(ticket);
  absl::Status status = copy.start;
  if (status.ok()) status = CudaStatus(cudaStreamWaitEvent(compute_, copy.ended, /*flags=*/0), "cudaStreamWaitEvent");
  // The event may be recorded anew at once: the wait is for the record that it found.
  End(ticket);
  return status;
}

// A device that failed touches neither end any more, so an error is as good an end.
void CudaCopyEngine::Cancel(CopyTicket ticket) {
  const absl::Status status = Wait(ticket);
  LOG_IF(WARNING, !status.ok()) << "a cancelled copy had failed: " << status;
}

absl::StatusOr<cudaEvent_t> CudaCopyEngine::TakeEvent() {
  cudaEvent_t event = nullptr;
  if (free_events_.empty()) {
    RETURN_IF_ERROR(CudaStatus(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags"));
    return event;
  }
  event = free_events_.back();
  free_events_.pop_back();
  return event;
}

const CudaCopyEngine::Copy& CudaCopyEngine::At(CopyTicket ticket) const {
  const auto it = copies_.find(ticket);
  CHECK(it != copies_.end()) << "copy " << ticket << " was never started, or has ended already";
  return it->second;
}

void CudaCopyEngine::End(CopyTicket ticket) {
  const auto it = copies_.find(ticket);
  if (it->second.ended != nullptr) free_events_.push_back(it->second.ended);
  copies_.erase(it);
}

}  // namespace stemma::worker
