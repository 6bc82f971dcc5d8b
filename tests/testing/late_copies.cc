#include "tests/testing/late_copies.h"

#include <glog/logging.h>

#include <atomic>
#include <cstring>

#include "tests/testing/fake_device.h"

namespace stemma::testing {
namespace {

std::atomic<int64_t> num_awaited = 0;

}  // namespace

int64_t LateCopyEngine::NumAwaited() { return num_awaited; }

CopyTicket LateCopyEngine::Start(std::vector<CopySpan> spans) {
  const OpenFakeMemory open;
  for (const CopySpan& span : spans) std::memset(span.to, 0xff, static_cast<size_t>(span.bytes));
  copies_[next_ticket_] = std::move(spans);
  return next_ticket_++;
}

std::vector<CopySpan> LateCopyEngine::Take(CopyTicket ticket) {
  const auto found = copies_.find(ticket);
  CHECK(found != copies_.end()) << "copy " << ticket << " has ended already";
  std::vector<CopySpan> spans = std::move(found->second);
  copies_.erase(found);
  return spans;
}

void LateCopyEngine::Run(const std::vector<CopySpan>& spans) {
  const OpenFakeMemory open;
  for (const CopySpan& span : spans) std::memcpy(span.to, span.from, static_cast<size_t>(span.bytes));
}

absl::Status LateCopyEngine::Wait(CopyTicket ticket) {
  Run(Take(ticket));
  return absl::OkStatus();
}

absl::Status LateCopyEngine::ComputeWaits(CopyTicket ticket) {
  ++num_awaited;
  return Wait(ticket);
}

void LateCopyEngine::Cancel(CopyTicket ticket) { Take(ticket); }

void UnorderedCopyEngine::RunLate() {
  for (const std::vector<CopySpan>& spans : late_) Run(spans);
  late_.clear();
}

CopyTicket UnorderedCopyEngine::StartCopyOut(std::vector<CopySpan> spans) {
  RunLate();
  return LateCopyEngine::StartCopyOut(std::move(spans));
}

CopyTicket UnorderedCopyEngine::StartCopyIn(std::vector<CopySpan> spans) {
  RunLate();
  return LateCopyEngine::StartCopyIn(std::move(spans));
}

absl::Status UnorderedCopyEngine::ComputeWaits(CopyTicket ticket) {
  late_.push_back(Take(ticket));
  return absl::OkStatus();
}

}  // namespace stemma::testing
