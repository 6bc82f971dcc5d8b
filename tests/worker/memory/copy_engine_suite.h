// What every copy engine must do. A Side is a machine: its engine, and the memory of the two ends of a copy.
//   Side::WhyNot()            why it cannot run here; empty: it can
//   Side, engine()            makes and holds the engine
//   Side::Device, Side::Host  memory of `count` zero bytes: data(), Write(bytes), Read()
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/testing/namespaces.h"
#include "worker/memory/copy_engine.h"

namespace stemma::testing {

using Bytes = std::vector<unsigned char>;

inline Bytes Pattern(size_t count, unsigned char first) {
  Bytes bytes(count);
  std::iota(bytes.begin(), bytes.end(), first);
  return bytes;
}

// Either end, where both are memory of this process.
class PlainMemory {
 public:
  explicit PlainMemory(size_t count) : bytes_(count) {}
  void* data() { return bytes_.data(); }
  void Write(const Bytes& bytes) { std::copy(bytes.begin(), bytes.end(), bytes_.begin()); }
  Bytes Read() const { return bytes_; }

 private:
  Bytes bytes_;
};

// Memory of one end: of a Side's device or of its host.
template <typename Memory>
std::unique_ptr<Memory> Holding(const Bytes& bytes) {
  auto memory = std::make_unique<Memory>(bytes.size());
  memory->Write(bytes);
  return memory;
}

template <typename From, typename To>
CopySpan Span(From& from, To& to, size_t count) {
  return {from.data(), to.data(), static_cast<int64_t>(count)};
}

template <typename Side>
class CopyEngineTest : public ::testing::Test {
 protected:
  using Device = typename Side::Device;
  using Host = typename Side::Host;

  void SetUp() override {
    if (!Side::WhyNot().empty()) GTEST_SKIP() << Side::WhyNot();
    side_ = std::make_unique<Side>();
  }
  CopyEngine& engine() { return side_->engine(); }

  std::unique_ptr<Side> side_;
};
template <typename Side>
class CopyEngineDeathTest : public CopyEngineTest<Side> {};
TYPED_TEST_SUITE_P(CopyEngineTest);
TYPED_TEST_SUITE_P(CopyEngineDeathTest);

TYPED_TEST_P(CopyEngineTest, EverySpanHasArrivedAfterWait) {
  const Bytes a = Pattern(10'000'001, 3), b = Pattern(17, 9);
  const auto from_a = Holding<typename TypeParam::Device>(a), from_b = Holding<typename TypeParam::Device>(b);
  typename TypeParam::Host to_a(a.size()), to_b(b.size());
  EXPECT_TRUE(this->engine()
                  .Wait(this->engine().StartCopyOut({Span(*from_a, to_a, a.size()), Span(*from_b, to_b, b.size())}))
                  .ok());
  EXPECT_EQ(a, to_a.Read());
  EXPECT_EQ(b, to_b.Read());
}

TYPED_TEST_P(CopyEngineTest, PollingSaysDoneOnceTheBytesAreThere) {
  const Bytes bytes = Pattern(5'000'000, 1);
  const auto from = Holding<typename TypeParam::Host>(bytes);
  typename TypeParam::Device to(bytes.size());
  const CopyTicket ticket = this->engine().StartCopyIn({Span(*from, to, bytes.size())});
  while (!this->engine().Done(ticket).value()) std::this_thread::yield();
  EXPECT_EQ(bytes, to.Read());
}

TYPED_TEST_P(CopyEngineTest, WhatWentOutComesBack) {
  const Bytes bytes = Pattern(3'000'001, 5);
  const auto from = Holding<typename TypeParam::Device>(bytes);
  typename TypeParam::Host host(bytes.size());
  typename TypeParam::Device back(bytes.size());
  EXPECT_TRUE(this->engine().Wait(this->engine().StartCopyOut({Span(*from, host, bytes.size())})).ok());
  EXPECT_TRUE(this->engine().Wait(this->engine().StartCopyIn({Span(host, back, bytes.size())})).ok());
  EXPECT_EQ(bytes, back.Read());
}

TYPED_TEST_P(CopyEngineTest, TheLastTicketMayBeWaitedForFirst) {
  const Bytes bytes = Pattern(3'000'000, 1);
  const auto from = Holding<typename TypeParam::Device>(bytes);
  std::vector<std::unique_ptr<typename TypeParam::Host>> to;
  std::vector<CopyTicket> tickets;
  for (int i = 0; i < 8; ++i) {
    to.push_back(std::make_unique<typename TypeParam::Host>(bytes.size()));
    tickets.push_back(this->engine().StartCopyOut({Span(*from, *to.back(), bytes.size())}));
  }
  for (size_t i = to.size(); i-- > 0;) {
    EXPECT_TRUE(this->engine().Wait(tickets[i]).ok());
    EXPECT_EQ(to[i]->Read(), bytes);
  }
}

TYPED_TEST_P(CopyEngineTest, AfterCancelNeitherEndIsTouched) {
  std::mt19937 random(7);
  const size_t count = 12'000'000;  // three pieces of the thread's
  for (int i = 0; i < 12; ++i) {
    auto from = Holding<typename TypeParam::Device>(Pattern(count, 1));
    auto to = std::make_unique<typename TypeParam::Host>(count);
    const CopyTicket tickets[] = {this->engine().StartCopyOut({Span(*from, *to, count)}),
                                  this->engine().StartCopyOut({Span(*from, *to, count)})};
    for (uint32_t turns = random() % 200; turns > 0; --turns) std::this_thread::yield();
    const size_t first = random() % 2;  // the one that is copied, the one in the queue, or both have ended
    this->engine().Cancel(tickets[first]);
    this->engine().Cancel(tickets[1 - first]);
    from.reset();
    to->Write(Bytes(count));
    const Bytes read = to->Read();
    EXPECT_EQ(std::count(read.begin(), read.end(), 0), static_cast<int64_t>(count));
  }
}

TYPED_TEST_P(CopyEngineTest, IsDestroyedWithCopiesInTheQueue) {
  const size_t count = 30'000'000;
  const auto from = Holding<typename TypeParam::Device>(Pattern(count, 1));
  std::vector<std::unique_ptr<typename TypeParam::Host>> to;
  for (int i = 0; i < 4; ++i) {
    to.push_back(std::make_unique<typename TypeParam::Host>(count));
    this->engine().StartCopyOut({Span(*from, *to.back(), count)});
  }
  this->side_.reset();
}

REGISTER_TYPED_TEST_SUITE_P(CopyEngineTest, EverySpanHasArrivedAfterWait, PollingSaysDoneOnceTheBytesAreThere,
                            WhatWentOutComesBack, TheLastTicketMayBeWaitedForFirst, AfterCancelNeitherEndIsTouched,
                            IsDestroyedWithCopiesInTheQueue);

TYPED_TEST_P(CopyEngineDeathTest, ATicketEndsOnce) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a device's context does not survive a fork
  EXPECT_DEATH(
      {
        const CopyTicket ticket = this->engine().StartCopyOut({});
        this->engine().Wait(ticket).IgnoreError();
        this->engine().Wait(ticket).IgnoreError();
      },
      "has ended already");
  EXPECT_DEATH(
      {
        const CopyTicket ticket = this->engine().StartCopyOut({});
        while (!this->engine().Done(ticket).value()) std::this_thread::yield();
        this->engine().Wait(ticket).IgnoreError();
      },
      "has ended already");
}
REGISTER_TYPED_TEST_SUITE_P(CopyEngineDeathTest, ATicketEndsOnce);

}  // namespace stemma::testing
