// A copy engine of the fake device whose copies come as late as streams allow: they run when the computation, or the
// host, is told to wait for them, and not before. What is used before that, or freed before that, holds other bytes.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "tests/testing/namespaces.h"
#include "worker/memory/copy_engine.h"

namespace stemma::testing {

class LateCopyEngine : public CopyEngine {
 public:
  CopyTicket StartCopyOut(std::vector<CopySpan> spans) override { return Start(std::move(spans)); }
  CopyTicket StartCopyIn(std::vector<CopySpan> spans) override { return Start(std::move(spans)); }
  absl::StatusOr<bool> Done(CopyTicket) override { return false; }
  absl::Status Wait(CopyTicket ticket) override;
  absl::Status ComputeWaits(CopyTicket ticket) override;
  void Cancel(CopyTicket ticket) override;

  // Copies that a computation was told to wait for, by all engines since the process began.
  static int64_t NumAwaited();

 protected:
  std::vector<CopySpan> Take(CopyTicket ticket);
  static void Run(const std::vector<CopySpan>& spans);

 private:
  // Fills what the copy will write with NaN.
  CopyTicket Start(std::vector<CopySpan> spans);

  std::map<CopyTicket, std::vector<CopySpan>> copies_;
  CopyTicket next_ticket_ = 0;
};

// A computation that does not wait: the copies that it was told to wait for run only when the next one is started.
class UnorderedCopyEngine final : public LateCopyEngine {
 public:
  CopyTicket StartCopyOut(std::vector<CopySpan> spans) override;
  CopyTicket StartCopyIn(std::vector<CopySpan> spans) override;
  absl::Status ComputeWaits(CopyTicket ticket) override;

 private:
  void RunLate();

  std::vector<std::vector<CopySpan>> late_;
};

}  // namespace stemma::testing
