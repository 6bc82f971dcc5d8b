#include "worker/parallel/c10d_communicator.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "glog/logging.h"
#include "worker/parallel/device_failure.h"

namespace stemma::worker {
namespace {

constexpr size_t kQuotedBytesMax = 300;

using Work = c10::intrusive_ptr<c10d::Work>;

at::Tensor Flat(const at::Tensor& tensor) { return tensor.view(-1); }
at::Tensor Bytes(const at::Tensor& tensor) { return Flat(tensor).view(at::kByte); }

std::string FirstLine(const std::string& text) { return text.substr(0, std::min(text.find('\n'), kQuotedBytesMax)); }

std::string Explained(const std::string& line, absl::Duration timeout) {
  const std::string lower = absl::AsciiStrToLower(line);
  const bool refused = absl::StrContains(lower, "connection refused");  // which Gloo calls a time out as well
  const bool late = absl::StrContains(lower, "timed out") || absl::StrContains(lower, "timeout");
  return absl::StrCat(
      refused ? "a peer refuses the connection: it has ended, or listens on another address"
      : late  ? absl::StrCat("timed out after ", absl::FormatDuration(timeout),
                             ": a peer hangs, is stopped, cannot be reached, or was killed inside a message")
              : "a peer has ended, or was killed",
      " (", line, ")");
}

// Returns what NCCL said, in one line. PyTorch puts its own source and a general word before NCCL's reason.
std::string NcclText(const c10::Error& error) {
  const std::string text = absl::StrReplaceAll(error.what_without_backtrace(), {{"\n", " "}});
  const size_t reason = std::min(text.find("Last error:"), text.size());
  return text.substr(0, std::min(reason, kQuotedBytesMax)) + text.substr(reason, kQuotedBytesMax);
}

absl::Status NcclError(const std::string& text, absl::Duration timeout) {
  if (absl::StrContains(text, "ncclUnhandledCudaError")) return OwnDeviceFailed(text);
  const std::string lower = absl::AsciiStrToLower(text);
  const auto names = [&](const char* words) { return absl::StrContains(lower, words); };
  const bool names_peer = names("remote") || names("refused") || names("timed out") || names("timeout");
  // What it does not call its own, such as the store's, comes of a peer, too.
  if (names_peer || !names("nccl error")) return absl::UnavailableError(Explained(text, timeout));
  return absl::UnavailableError(absl::StrCat("NCCL failed on this rank (", text, ")"));
}

// Returns all that there are, the host's first: by its end the peers hear that this rank has gone, whatever the others
// still wait for.
std::vector<c10::intrusive_ptr<c10d::Backend>> Connected(const AxisBackends& backends) {
  std::vector<c10::intrusive_ptr<c10d::Backend>> connected = {backends.host, backends.device};
  for (const auto* list : {&backends.to, &backends.from}) connected.insert(connected.end(), list->begin(), list->end());
  std::erase(connected, nullptr);
  return connected;
}

// Adds this rank's part of the sum, in the order of the ranks. A CPU copies what it adds where its dtype is another, so
// it gets pieces of that.
void AddParts(const at::Tensor& parts, const at::Tensor& sum) {
  constexpr int64_t kCopiedElements = int64_t{1} << 16;
  const int64_t part = sum.numel();
  const bool copies = sum.is_cpu() && parts.scalar_type() != sum.scalar_type();
  const int64_t step = copies ? kCopiedElements : std::max<int64_t>(part, 1);
  sum.copy_(parts.narrow(0, 0, part));
  for (int64_t begin = part; begin < parts.numel(); begin += part) {
    for (int64_t at = 0; at < part; at += step) {
      const int64_t elements = std::min(step, part - at);
      sum.narrow(0, at, elements).add_(parts.narrow(0, begin + at, elements));
    }
  }
}

// NCCL's end throws, as when this rank's device has failed or what is in flight stays: it would end the process in a
// destructor or a thread, before the rank has said why it ends.
void EndOf(const c10d::Backend& backend, absl::Duration timeout, const std::function<void()>& end) {
  const absl::Status ended = CatchC10d(timeout, end);
  LOG_IF(WARNING, !ended.ok()) << backend.getBackendName() << " has not ended as asked: " << ended.message();
}

Work Reduce(c10d::Backend& backend, at::Tensor values, c10d::ReduceOp op) {
  std::vector<at::Tensor> tensors{std::move(values)};
  c10d::AllreduceOptions options;
  options.reduceOp = std::move(op);
  return backend.allreduce(tensors, options);
}

}  // namespace

at::Tensor LentTensors::ViewOf(const at::Tensor& values) const {
  held_->push_back(values);
  return at::for_blob(values.data_ptr(), values.sizes())
      .deleter([held = held_](void* /*memory*/) {})
      .options(values.options())
      .target_device(values.device())
      .make_tensor();
}

at::Tensor LentTensors::OfCollective(const at::Tensor& values) const {
  return values.is_cpu() ? ViewOf(values) : values;
}

absl::Status CatchC10d(absl::Duration timeout, const std::function<void()>& call) {
  const auto own = [](const std::exception& error) { return OwnDeviceFailed(FirstLine(error.what())); };
  try {
    call();
  } catch (const c10::OutOfMemoryError& error) {
    return own(error);
  } catch (const c10::AcceleratorError& error) {
    return own(error);
  } catch (const c10::DistBackendError& error) {
    return NcclError(NcclText(error), timeout);
  } catch (const std::exception& error) {
    return absl::UnavailableError(Explained(FirstLine(error.what()), timeout));
  }
  return absl::OkStatus();
}

C10dCommunicator::C10dCommunicator(std::string axis, AxisBackends backends, absl::Duration timeout)
    : Communicator(std::move(axis), backends.host->getRank(), backends.host->getSize()),
      backends_(std::move(backends)),
      timeout_(timeout) {}

C10dCommunicator::~C10dCommunicator() {
  // A device's orderly end is a call of all ranks: it would wait for those that stay, as when this rank alone cannot
  // load its part, and nobody would hear why. Whatever was asked of this rank has been waited for.
  for (const auto& backend : Connected(backends_)) {
    EndOf(*backend, timeout_, [&] { backend == backends_.host ? backend->shutdown() : backend->abort(); });
  }
  if (closing_.joinable()) closing_.join();
}

StartedCall C10dCommunicator::Start(const CollectiveCall& call) {
  const at::Tensor& output = call.output;
  const bool empty = (output.defined() ? output : call.input).numel() == 0;
  if (empty) return {[] { return absl::OkStatus(); }};  // on every rank: they agree on sizes
  const LentTensors lent;
  at::Tensor exchanged;
  Work work;
  absl::Status status = CatchC10d(timeout_, [&] {
    if (call.kind == CollectiveKind::kReduceScatterSum) {
      exchanged = call.scratch.defined() ? Flat(call.scratch) : at::empty_like(Flat(call.input));
    }
    work = StartWork(call, exchanged, lent);
  });
  if (!status.ok()) return {[status] { return status; }};
  const auto wait = [this, work, exchanged, lent, &output] {
    return CatchC10d(timeout_, [&] {
      work->wait();
      lent.TakeBack();
      if (exchanged.defined()) AddParts(exchanged, Flat(output));
    });
  };
  return {wait, [work] { return work->isCompleted(); }};
}

C10dCommunicator::Route C10dCommunicator::RouteOf(const CollectiveCall& call) const {
  const at::Tensor& tensor = call.output.defined() ? call.output : call.input;
  if (tensor.is_cpu()) return {*backends_.host, call.peer};
  const bool sends = call.kind == CollectiveKind::kSend, is_message = sends || call.kind == CollectiveKind::kReceive;
  const auto& pairs = sends ? backends_.to : backends_.from;
  if (!is_message || pairs.empty()) {
    CHECK(backends_.device != nullptr) << call.name << ": axis " << axis() << " carries no " << KindName(call.kind)
                                       << " of tensors on " << tensor.device();
    return {*backends_.device, call.peer};
  }
  const auto& pair = pairs[static_cast<size_t>(call.peer)];
  CHECK(pair != nullptr) << call.name << ": ranks " << rank() << " and " << call.peer << " of axis " << axis()
                         << " are no neighbours";
  return {*pair, sends ? 1 : 0};
}

Work C10dCommunicator::StartWork(const CollectiveCall& call, const at::Tensor& exchanged, const LentTensors& lent) {
  auto [backend, peer] = RouteOf(call);
  // Work is matched by the order of the calls; a pair's sends and receives by theirs.
  constexpr int kTag = 0;
  switch (call.kind) {
    case CollectiveKind::kAllReduceSum:
      return Reduce(backend, lent.OfCollective(Flat(call.output)), c10d::ReduceOp::SUM);
    case CollectiveKind::kAgree:
      return Reduce(backend, lent.OfCollective(Flat(call.output)), c10d::ReduceOp::MAX);
    case CollectiveKind::kReduceScatterSum: {
      at::Tensor to = lent.OfCollective(Bytes(exchanged)), from = lent.OfCollective(Bytes(call.input));
      std::vector<int64_t> to_counts, from_counts;  // equal parts; moved out of
      return backend.alltoall_base(to, from, to_counts, from_counts);
    }
    case CollectiveKind::kAllGather: {
      at::Tensor to = lent.OfCollective(Bytes(call.output)), from = lent.OfCollective(Bytes(call.input));
      return backend._allgather_base(to, from);
    }
    case CollectiveKind::kBroadcast: {
      std::vector<at::Tensor> values{lent.OfCollective(Bytes(call.output))};
      c10d::BroadcastOptions options;
      options.rootRank = peer;
      return backend.broadcast(values, options);
    }
    case CollectiveKind::kSend: {
      std::vector<at::Tensor> values{lent.ViewOf(Bytes(call.input))};
      return backend.send(values, peer, kTag);
    }
    case CollectiveKind::kReceive: {
      std::vector<at::Tensor> values{lent.ViewOf(Bytes(call.output))};
      return backend.recv(values, peer, kTag);
    }
  }
  LOG(FATAL) << "no such kind of collective: " << static_cast<int>(call.kind);
}

void C10dCommunicator::Break() {
  // The end of a backend waits for what is in flight, which another peer may hold up. Nobody else holds one any more.
  auto all = Connected(backends_);
  backends_ = {};
  closing_ = std::thread([all = std::move(all), timeout = timeout_]() mutable {
    for (auto& backend : all) {
      EndOf(*backend, timeout, [&] { backend->abort(); });
      backend.reset();
    }
  });
}

}  // namespace stemma::worker
