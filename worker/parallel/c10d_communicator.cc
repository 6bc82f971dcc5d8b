#include "worker/parallel/c10d_communicator.h"

#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <exception>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace stemma::worker {
namespace {

constexpr size_t kQuotedBytesMax = 300;

at::Tensor Flat(const at::Tensor& tensor) { return tensor.view(-1); }
at::Tensor Bytes(const at::Tensor& tensor) { return Flat(tensor).view(at::kByte); }

std::string Explained(const std::string& text, absl::Duration timeout) {
  const std::string line = text.substr(0, std::min(text.find('\n'), kQuotedBytesMax));
  const std::string lower = absl::AsciiStrToLower(line);
  const bool refused = absl::StrContains(lower, "connection refused");  // which Gloo calls a time out as well
  const bool late = absl::StrContains(lower, "timed out") || absl::StrContains(lower, "timeout");
  return absl::StrCat(refused ? "a peer refuses the connection: it has ended, or listens on another address"
                      : late  ? absl::StrCat("timed out after ", absl::FormatDuration(timeout),
                                             ": a peer hangs, is stopped or cannot be reached")
                              : "a peer has ended, or was killed",
                      " (", line, ")");
}

// This rank's part of the sum, in the order of the ranks.
void AddParts(const at::Tensor& parts, const at::Tensor& sum) {
  const int64_t part = sum.numel();
  sum.copy_(parts.narrow(0, 0, part));
  for (int64_t begin = part; begin < parts.numel(); begin += part) sum.add_(parts.narrow(0, begin, part));
}

}  // namespace

absl::Status CatchC10d(absl::Duration timeout, const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return absl::UnavailableError(Explained(error.what(), timeout));
  }
  return absl::OkStatus();
}

C10dCommunicator::C10dCommunicator(std::string axis, c10::intrusive_ptr<c10d::Backend> backend, at::Device device,
                                   absl::Duration timeout)
    : Communicator(std::move(axis), backend->getRank(), backend->getSize()),
      backend_(std::move(backend)),
      device_(device),
      timeout_(timeout) {}

C10dCommunicator::~C10dCommunicator() {
  if (backend_ != nullptr) backend_->shutdown();
  if (closing_.joinable()) closing_.join();
}

StartedCall C10dCommunicator::Start(const CollectiveCall& call) {
  const at::Tensor& output = call.output;
  const bool empty = call.kind != CollectiveKind::kBarrier && (output.defined() ? output : call.input).numel() == 0;
  if (empty) return {[] { return absl::OkStatus(); }};  // on every rank: they agree on sizes
  if (call.kind == CollectiveKind::kAgree && !device_.is_cpu()) return StartAgree(call);
  const bool adds = call.kind == CollectiveKind::kReduceScatterSum;
  const at::Tensor exchanged = !adds                    ? at::Tensor()
                               : call.scratch.defined() ? Flat(call.scratch)
                                                        : at::empty_like(Flat(call.input));
  Work work;
  absl::Status status = CatchC10d(timeout_, [&] { work = StartWork(call, exchanged); });
  if (!status.ok()) return {[status] { return status; }};
  const auto wait = [this, work, exchanged, &output] {
    absl::Status ended = CatchC10d(timeout_, [&] { work->wait(); });
    if (ended.ok() && exchanged.defined()) AddParts(exchanged, Flat(output));
    return ended;
  };
  return {wait, [work] { return work->isCompleted(); }};
}

StartedCall C10dCommunicator::StartAgree(const CollectiveCall& call) {
  at::Tensor words;
  Work work;
  absl::Status status = CatchC10d(timeout_, [&] {
    words = Flat(call.input).to(device_);
    work = Reduce(words, c10d::ReduceOp::MAX);
  });
  if (!status.ok()) return {[status] { return status; }};
  const auto wait = [this, words, work, &output = call.output] {
    return CatchC10d(timeout_, [&] {
      work->wait();
      Flat(output).copy_(words);
    });
  };
  return {wait, [work] { return work->isCompleted(); }};
}

C10dCommunicator::Work C10dCommunicator::StartWork(const CollectiveCall& call, const at::Tensor& exchanged) {
  // Work is matched by the order of the calls; a pair's sends and receives by theirs.
  constexpr int kTag = 0;
  switch (call.kind) {
    case CollectiveKind::kAllReduceSum:
      return Reduce(call.output, c10d::ReduceOp::SUM);
    case CollectiveKind::kAgree:
      return Reduce(call.output, c10d::ReduceOp::MAX);
    case CollectiveKind::kReduceScatterSum: {
      at::Tensor to = Bytes(exchanged), from = Bytes(call.input);
      std::vector<int64_t> to_counts, from_counts;  // equal parts; moved out of
      return backend_->alltoall_base(to, from, to_counts, from_counts);
    }
    case CollectiveKind::kAllGather: {
      at::Tensor to = Bytes(call.output), from = Bytes(call.input);
      return backend_->_allgather_base(to, from);
    }
    case CollectiveKind::kBroadcast: {
      std::vector<at::Tensor> values{Bytes(call.output)};
      c10d::BroadcastOptions options;
      options.rootRank = call.peer;
      return backend_->broadcast(values, options);
    }
    case CollectiveKind::kSend: {
      std::vector<at::Tensor> values{Bytes(call.input)};
      return backend_->send(values, call.peer, kTag);
    }
    case CollectiveKind::kReceive: {
      std::vector<at::Tensor> values{Bytes(call.output)};
      return backend_->recv(values, call.peer, kTag);
    }
    case CollectiveKind::kBarrier:
      break;
  }
  return backend_->barrier();
}

C10dCommunicator::Work C10dCommunicator::Reduce(const at::Tensor& values, c10d::ReduceOp op) {
  std::vector<at::Tensor> tensors{Flat(values)};
  c10d::AllreduceOptions options;
  options.reduceOp = std::move(op);
  return backend_->allreduce(tensors, options);
}

void C10dCommunicator::Break() {
  // The end of a backend waits for what is in flight, which another peer may hold up.
  closing_ = std::thread([backend = std::move(backend_)]() mutable {
    backend->abort();
    backend.reset();
  });
}

}  // namespace stemma::worker
