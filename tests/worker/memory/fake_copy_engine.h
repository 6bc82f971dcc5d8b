// A copy engine whose completions the test controls: copies lie until they are ended, waited for or cancelled. Wrong
// ones for the negative controls.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "tests/testing/namespaces.h"
#include "worker/memory/copy_engine.h"

namespace stemma::testing {

class FakeCopyEngine : public CopyEngine {
 public:
  ~FakeCopyEngine() override { EXPECT_TRUE(spans_.empty()) << "a ticket was never ended"; }

  CopyTicket StartCopyOut(std::vector<CopySpan> spans) override { return Start(std::move(spans)); }
  CopyTicket StartCopyIn(std::vector<CopySpan> spans) override { return Start(std::move(spans)); }
  absl::StatusOr<bool> Done(CopyTicket ticket) override {
    if (ended_.count(ticket) == 0) return false;
    spans_.erase(ticket);
    return true;
  }
  absl::Status Wait(CopyTicket ticket) override {
    ++waits;
    End(ticket);
    spans_.erase(ticket);
    return absl::OkStatus();
  }
  void Cancel(CopyTicket ticket) override {
    ++cancels;
    EXPECT_EQ(spans_.erase(ticket), 1u);
  }

  // The copies that have not ended, oldest first.
  std::vector<CopyTicket> Open() const {
    std::vector<CopyTicket> tickets;
    for (const auto& [ticket, spans] : spans_) {
      if (ended_.count(ticket) == 0) tickets.push_back(ticket);
    }
    return tickets;
  }
  void End(CopyTicket ticket) {
    for (const CopySpan& span : spans_.at(ticket)) std::memcpy(span.to, span.from, static_cast<size_t>(span.bytes));
    ended_.insert(ticket);
  }
  void EndAll() {
    for (const CopyTicket ticket : Open()) End(ticket);
  }

  int waits = 0, cancels = 0;

 protected:
  CopyTicket Start(std::vector<CopySpan> spans) {
    spans_[next_ticket_] = std::move(spans);
    return next_ticket_++;
  }

  std::map<CopyTicket, std::vector<CopySpan>> spans_;
  std::set<CopyTicket> ended_;
  CopyTicket next_ticket_ = 0;
};

// Says that copies of one direction have ended, and moves nothing.
class LyingCopyEngine final : public FakeCopyEngine {
 public:
  explicit LyingCopyEngine(bool lies_out) : lies_out_(lies_out) {}
  CopyTicket StartCopyOut(std::vector<CopySpan> spans) override {
    return Start(lies_out_ ? std::vector<CopySpan>() : std::move(spans));
  }
  CopyTicket StartCopyIn(std::vector<CopySpan> spans) override {
    return Start(lies_out_ ? std::move(spans) : std::vector<CopySpan>());
  }

 private:
  const bool lies_out_;
};

// Copies at once when a copy is started: the earliest that an engine may.
class EagerCopyEngine final : public FakeCopyEngine {
 public:
  CopyTicket StartCopyOut(std::vector<CopySpan> spans) override { return Ended(Start(std::move(spans))); }
  CopyTicket StartCopyIn(std::vector<CopySpan> spans) override { return Ended(Start(std::move(spans))); }

 private:
  CopyTicket Ended(CopyTicket ticket) {
    End(ticket);
    return ticket;
  }
};

// Says that a copy has ended before it did: what was waited for is copied when the next copy is started.
class HastyCopyEngine final : public FakeCopyEngine {
 public:
  CopyTicket StartCopyOut(std::vector<CopySpan> spans) override { return AfterLate(std::move(spans)); }
  CopyTicket StartCopyIn(std::vector<CopySpan> spans) override { return AfterLate(std::move(spans)); }
  absl::Status Wait(CopyTicket ticket) override {
    late_.push_back(std::exchange(spans_[ticket], {}));
    return FakeCopyEngine::Wait(ticket);
  }

 private:
  CopyTicket AfterLate(std::vector<CopySpan> spans) {
    for (std::vector<CopySpan>& late : std::exchange(late_, {})) End(Start(std::move(late)));
    for (const CopyTicket ended : ended_) spans_.erase(ended);
    return Start(std::move(spans));
  }

  std::vector<std::vector<CopySpan>> late_;
};

// Its `failing`-th copy fails, asked by polling or by waiting.
class FailingCopyEngine final : public FakeCopyEngine {
 public:
  explicit FailingCopyEngine(CopyTicket failing, absl::Status failure = absl::DataLossError("the link is down"))
      : failing_(failing), failure_(std::move(failure)) {}
  absl::StatusOr<bool> Done(CopyTicket ticket) override {
    if (ticket == failing_) return Failed();
    End(ticket);
    return FakeCopyEngine::Done(ticket);
  }
  absl::Status Wait(CopyTicket ticket) override { return ticket == failing_ ? Failed() : FakeCopyEngine::Wait(ticket); }

 private:
  absl::Status Failed() {
    spans_.erase(failing_);
    return failure_;
  }

  const CopyTicket failing_;
  const absl::Status failure_;
};

}  // namespace stemma::testing
