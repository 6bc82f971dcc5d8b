#include "worker/parallel/communicator.h"

#include <ATen/ops/from_blob.h>
#include <glog/logging.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/names.h"

namespace stemma::worker {
namespace {

void CheckTensor(std::string_view name, const at::Tensor& tensor) {
  CHECK(tensor.defined()) << name << ": no tensor";
  CHECK(tensor.is_contiguous()) << name << ": a tensor that crosses ranks is contiguous";
}

void CheckSummable(std::string_view name, const at::Tensor& tensor) {
  const auto type = tensor.scalar_type();
  CHECK(type == at::kFloat || type == at::kDouble || type == at::kLong)
      << name << ": sums are of float32, float64 or int64, this is " << at::toString(type);
}

// CHECKs that `whole`, of that dtype, holds one `part` for each rank.
void CheckParts(std::string_view name, const at::Tensor& part, const at::Tensor& whole, int size,
                at::ScalarType dtype) {
  CheckTensor(name, part);
  CheckTensor(name, whole);
  CHECK_EQ(whole.numel(), part.numel() * size) << name << ": one part for each of " << size << " ranks";
  CHECK(whole.scalar_type() == dtype) << name << ": " << at::toString(dtype) << " and "
                                      << at::toString(whole.scalar_type());
  CHECK(whole.device() == part.device()) << name << ": " << part.device() << " and " << whole.device();
}

CollectiveCall AllReduceCall(std::string_view name, const at::Tensor& values) {
  CheckTensor(name, values);
  CheckSummable(name, values);
  return {.kind = CollectiveKind::kAllReduceSum, .name = std::string(name), .input = values, .output = values};
}

CollectiveCall ReduceScatterCall(std::string_view name, const at::Tensor& input, const at::Tensor& output, int size,
                                 const at::Tensor& scratch = {}) {
  CheckSummable(name, output);
  const bool narrow = input.scalar_type() == at::kBFloat16 && output.scalar_type() == at::kFloat;
  CheckParts(name, output, input, size, narrow ? at::kBFloat16 : output.scalar_type());
  if (scratch.defined()) CheckParts(name, output, scratch, size, input.scalar_type());
  return {.kind = CollectiveKind::kReduceScatterSum,
          .name = std::string(name),
          .input = input,
          .output = output,
          .scratch = scratch};
}

CollectiveCall AllGatherCall(std::string_view name, const at::Tensor& input, const at::Tensor& output, int size) {
  CheckParts(name, input, output, size, input.scalar_type());
  return {.kind = CollectiveKind::kAllGather, .name = std::string(name), .input = input, .output = output};
}

// The tensor that holds all ranks' values, whose bytes are counted.
int64_t WholeBytes(const CollectiveCall& call) {
  const at::Tensor& whole =
      call.kind == CollectiveKind::kReduceScatterSum || !call.output.defined() ? call.input : call.output;
  return static_cast<int64_t>(whole.nbytes());
}

}  // namespace

PendingCollective::~PendingCollective() {
  CHECK(started_.wait == nullptr) << KindName(call_.kind) << " " << call_.name << " was started and not waited for";
}

absl::Status PendingCollective::Wait() {
  CHECK(started_.wait != nullptr) << KindName(call_.kind) << " " << call_.name << " was waited for already";
  return communicator_->End(*this);
}

bool PendingCollective::Done() const {
  CHECK(started_.wait != nullptr) << KindName(call_.kind) << " " << call_.name << " was waited for already";
  return !communicator_->error_.ok() || started_.done == nullptr || started_.done();
}

Communicator::Communicator(std::string axis, int rank, int size) : axis_(std::move(axis)), rank_(rank), size_(size) {
  CHECK_GE(rank, 0);
  CHECK_LT(rank, size);
}

Communicator::~Communicator() { CHECK_EQ(pending_count_, 0) << "collectives of axis " << axis_ << " are pending"; }

absl::Status Communicator::AllReduceSum(std::string_view name, at::Tensor& values) {
  return Begin(AllReduceCall(name, values))->Wait();
}

absl::Status Communicator::ReduceScatterSum(std::string_view name, const at::Tensor& input, at::Tensor& output) {
  return Begin(ReduceScatterCall(name, input, output, size_))->Wait();
}

absl::Status Communicator::AllGather(std::string_view name, const at::Tensor& input, at::Tensor& output) {
  return Begin(AllGatherCall(name, input, output, size_))->Wait();
}

absl::Status Communicator::Broadcast(std::string_view name, at::Tensor& values, int root) {
  CheckTensor(name, values);
  CHECK(root >= 0 && root < size_) << name << ": no rank " << root << " of " << size_;
  return Begin({.kind = CollectiveKind::kBroadcast, .name = std::string(name), .output = values, .peer = root})->Wait();
}

absl::Status Communicator::Send(std::string_view name, const at::Tensor& values, int to) {
  return StartSend(name, values, to)->Wait();
}

absl::Status Communicator::Receive(std::string_view name, at::Tensor& values, int from) {
  CheckTensor(name, values);
  CheckPeer(from);
  return Begin({.kind = CollectiveKind::kReceive, .name = std::string(name), .output = values, .peer = from})->Wait();
}

absl::Status Communicator::Agree(std::string_view name, std::span<int64_t> words) {
  at::Tensor values = at::from_blob(words.data(), {static_cast<int64_t>(words.size())}, at::kLong);
  return Begin({.kind = CollectiveKind::kAgree, .name = std::string(name), .input = values, .output = values})->Wait();
}

void Communicator::GiveUp() {
  if (!error_.ok()) return;
  error_ = absl::UnavailableError(absl::StrCat("rank ", rank_, " of ", size_, " of axis ", axis_,
                                               " has given up; this generation of the gang has ended"));
  Break();
}

std::unique_ptr<PendingCollective> Communicator::StartReduceScatterSum(std::string_view name, const at::Tensor& input,
                                                                       at::Tensor& output, const at::Tensor& scratch) {
  return Begin(ReduceScatterCall(name, input, output, size_, scratch));
}

std::unique_ptr<PendingCollective> Communicator::StartAllGather(std::string_view name, const at::Tensor& input,
                                                                at::Tensor& output) {
  return Begin(AllGatherCall(name, input, output, size_));
}

std::unique_ptr<PendingCollective> Communicator::StartSend(std::string_view name, const at::Tensor& values, int to) {
  CheckTensor(name, values);
  CheckPeer(to);
  return Begin({.kind = CollectiveKind::kSend, .name = std::string(name), .input = values, .peer = to});
}

void Communicator::CheckPeer(int peer) const {
  CHECK(peer >= 0 && peer < size_ && peer != rank_) << "rank " << rank_ << " of " << size_ << " has no peer " << peer;
}

std::unique_ptr<PendingCollective> Communicator::Begin(CollectiveCall call) {
  CHECK(CheckFileName(call.name).ok()) << "\"" << call.name << "\" cannot stand in a trace";
  std::unique_ptr<PendingCollective> pending(new PendingCollective(this, std::move(call)));
  pending->begun_s_ = RealClock().MonotonicSeconds();
  pending->started_ = error_.ok() ? Start(pending->call_) : StartedCall{[] { return absl::OkStatus(); }};
  ++pending_count_;  // Start may throw: then nothing is pending
  pending->start_seconds_ = RealClock().MonotonicSeconds() - pending->begun_s_;
  return pending;
}

absl::Status Communicator::End(PendingCollective& pending) {
  const auto wait = std::exchange(pending.started_, {}).wait;
  --pending_count_;
  if (!error_.ok()) return error_;
  const double began = RealClock().MonotonicSeconds();
  if (const absl::Status status = wait(); !status.ok()) {
    error_ = Broken(pending.call_, status);
    Break();
    return error_;
  }
  const double ended = RealClock().MonotonicSeconds();
  const CollectiveCall& call = pending.call_;
  const int64_t bytes = CollectiveBytes(call.kind, WholeBytes(call), size_);
  stats_.Add(call.name, bytes, pending.start_seconds_ + ended - began, call.kind == CollectiveKind::kReceive);
  if (observer_) observer_({call.kind, axis_, call.name, call.peer, bytes, pending.begun_s_, began, ended});
  return absl::OkStatus();
}

absl::Status Communicator::Broken(const CollectiveCall& call, const absl::Status& cause) const {
  return absl::UnavailableError(absl::StrCat(std::string(KindName(call.kind)), " ", call.name,
                                             call.peer < 0 ? "" : absl::StrCat(" (peer ", call.peer, ")"), " of axis ",
                                             axis_, ", rank ", rank_, " of ", size_, ": ", std::string(cause.message()),
                                             "; this generation of the gang has ended"));
}

}  // namespace stemma::worker
