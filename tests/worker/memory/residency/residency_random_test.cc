// Any order of completions, needs and sizes, against an executor that knows which copies hold the entry's bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "worker/memory/residency/residency.h"

namespace stemma::worker {
namespace {

// What the machine must not do, told by what is where and not by the machine's own books.
class Oracle {
 public:
  Oracle(Residency& residency, const ResidencyOptions& options, std::mt19937& random)
      : residency_(residency), options_(options), random_(random) {}

  void Produce(int64_t entry, int64_t bytes) {
    copies_[entry] = {.bytes = bytes, .on_device = true};
    Run(residency_.Produced(entry, bytes));
  }
  void ProducingEnded() { residency_.ProducingEnded(); }
  void ConsumeSoon() {
    prefetch_allowed_ = true;
    Run(residency_.ConsumeSoon());
  }
  void Consume(int64_t entry) {
    needed_ = entry;
    Run(residency_.Need(entry));
    needed_ = -1;
    ASSERT_TRUE(copies_[entry].on_device && !copies_[entry].arriving && !copies_[entry].leaving);
    copies_.erase(entry);
    Run(residency_.Consumed(entry));
  }
  // One of the copies in flight ends, whichever.
  void EndSomeCopy() {
    std::vector<int64_t> moving;
    for (const auto& [entry, c] : copies_) {
      if (c.leaving || c.arriving) moving.push_back(entry);
    }
    if (!moving.empty()) End(moving[random_() % moving.size()]);
  }
  // Entries that stayed on the device after all, with a copy in host memory.
  int64_t left_in_vain() const { return left_in_vain_; }
  std::vector<int64_t> Entries() const {
    std::vector<int64_t> entries;
    for (const auto& [entry, c] : copies_) entries.push_back(entry);
    return entries;
  }

 private:
  struct Copies {
    int64_t bytes = 0;
    bool on_device = false, in_host = false;  // memory is taken
    bool leaving = false, arriving = false;
    bool host_valid = false;
    bool kept = false, back = false;
  };

  void End(int64_t entry) {
    Copies& c = copies_[entry];
    if (c.leaving) {
      c.leaving = false;
      c.host_valid = true;
      return Run(residency_.CopyOutDone(entry));
    }
    c.arriving = false;
    Run(residency_.CopyInDone(entry));
  }

  void Run(const Actions& actions) {
    ++depth_;
    for (const Action& action : actions) Run(action);
    if (--depth_ == 0) CheckBytes();
  }
  void Run(const Action& action) {
    Copies& c = copies_.at(action.entry);
    switch (action.kind) {
      case ActionKind::kStartCopyOut:
        return StartCopyOut(action.entry, c);
      case ActionKind::kCancelCopyOut:
        EXPECT_TRUE(c.leaving);
        c.leaving = false;
        return;
      case ActionKind::kFreeDevice:
        EXPECT_TRUE(c.on_device && c.host_valid && !c.arriving && !c.leaving) << action.entry;
        c.on_device = false;
        return residency_.DeviceFreed(action.entry);
      case ActionKind::kStartCopyIn:
        return StartCopyIn(action.entry, c);
      case ActionKind::kFreeHost:
        EXPECT_TRUE(c.in_host && c.on_device && !c.arriving && !c.leaving) << action.entry;
        if (!c.back) ++left_in_vain_;
        c.in_host = c.host_valid = false;
        return residency_.HostFreed(action.entry);
      case ActionKind::kWaitFor:
        EXPECT_EQ(action.entry, needed_);
        return End(action.entry);
    }
  }

  void StartCopyOut(int64_t entry, Copies& c) {
    EXPECT_TRUE(c.on_device && !c.in_host && !c.kept) << entry;
    if (random_() % 20 == 0) {
      c.kept = true;
      return Run(residency_.CopyOutRefused(entry));
    }
    c.in_host = c.leaving = true;
    EXPECT_LE(std::count_if(copies_.begin(), copies_.end(), [](const auto& e) { return e.second.leaving; }),
              kCopiesOutMax);
  }
  void StartCopyIn(int64_t entry, Copies& c) {
    EXPECT_TRUE(!c.on_device && c.in_host && c.host_valid) << entry;
    c.on_device = c.arriving = c.back = true;
    if (entry == needed_) return;
    EXPECT_TRUE(prefetch_allowed_);
    int64_t back_bytes = 0;
    for (const auto& [other, o] : copies_) back_bytes += o.back ? o.bytes : 0;
    EXPECT_LE(back_bytes, options_.headroom_bytes);
    for (const auto& [other, o] : copies_) EXPECT_TRUE(other <= entry || o.on_device) << other << " comes first";
  }
  void CheckBytes() {
    int64_t device_bytes = 0, host_bytes = 0;
    for (const auto& [entry, c] : copies_) {
      device_bytes += c.on_device ? c.bytes : 0;
      host_bytes += c.in_host ? c.bytes : 0;
    }
    EXPECT_LE(host_bytes, options_.host_bytes);
    EXPECT_EQ(residency_.stats().device_bytes, device_bytes);
    EXPECT_EQ(residency_.stats().host_bytes, host_bytes);
  }

  Residency& residency_;
  const ResidencyOptions options_;
  std::mt19937& random_;
  std::map<int64_t, Copies> copies_;  // of what is not consumed
  int64_t needed_ = -1;
  bool prefetch_allowed_ = false;
  int64_t left_in_vain_ = 0;
  int depth_ = 0;  // an event inside the actions of another
};

struct Totals {
  int64_t demand_loads = 0, waits = 0, wasted = 0, kept = 0, prefetched = 0;
};

void RunOne(uint32_t seed, Totals& totals) {
  std::mt19937 random(seed);
  const ResidencyOptions options{.host_bytes = static_cast<int64_t>(200 + random() % 1500),
                                 .headroom_bytes = static_cast<int64_t>(random() % 600)};
  Residency residency(options);
  Oracle oracle(residency, options, random);
  const int64_t count = 1 + random() % 24;
  const bool in_order = random() % 2 == 0;
  const uint32_t speed = random() % 4;  // of the copies
  const auto copy_some = [&] {
    for (uint32_t i = random() % (speed + 1); i > 0; --i) oracle.EndSomeCopy();
  };
  const auto consume_one = [&] {
    const std::vector<int64_t> left = oracle.Entries();
    oracle.Consume(in_order ? left.back() : left[random() % left.size()]);
  };
  for (int64_t entry = 0; entry < count; ++entry) {
    oracle.Produce(entry, static_cast<int64_t>(random() % 200));
    copy_some();
    if (!in_order && random() % 8 == 0) consume_one();
  }
  oracle.ProducingEnded();
  for (uint32_t waves = random() % 6; waves > 0; --waves) copy_some();
  oracle.ConsumeSoon();
  for (uint32_t layers = random() % 6; layers > 0; --layers) copy_some();
  while (!oracle.Entries().empty()) {
    consume_one();
    copy_some();
  }
  const ResidencyStats& stats = residency.stats();
  EXPECT_EQ(stats.device_bytes, 0);
  EXPECT_EQ(stats.host_bytes, 0);
  totals.demand_loads += stats.demand_loads;
  totals.waits += stats.waits;
  totals.wasted += oracle.left_in_vain();
  totals.kept += stats.kept;
  totals.prefetched += stats.bytes_in > 0 && stats.demand_loads == 0 ? 1 : 0;
}

TEST(ResidencyRandomTest, NoOrderOfCompletionsBreaksAnInvariant) {
  Totals totals;
  for (uint32_t seed = 0; seed < 4000 && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    RunOne(seed, totals);
  }
  // Every path of the policy was taken.
  EXPECT_GT(totals.demand_loads, 100);
  EXPECT_GT(totals.waits, 100);
  EXPECT_GT(totals.wasted, 100);
  EXPECT_GT(totals.kept, 100);
  EXPECT_GT(totals.prefetched, 100);
}

}  // namespace
}  // namespace stemma::worker
