#include "worker/memory/thread_copy_engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

namespace stemma {
namespace {

using Bytes = std::vector<unsigned char>;

Bytes Pattern(size_t count, unsigned char first) {
  Bytes bytes(count);
  std::iota(bytes.begin(), bytes.end(), first);
  return bytes;
}

CopySpan Span(const Bytes& from, Bytes& to) { return {from.data(), to.data(), static_cast<int64_t>(from.size())}; }

TEST(ThreadCopyEngineTest, EverySpanHasArrivedAfterWait) {
  ThreadCopyEngine engine;
  const Bytes a = Pattern(10'000'001, 3), b = Pattern(17, 9);
  Bytes to_a(a.size()), to_b(b.size());
  EXPECT_TRUE(engine.Wait(engine.StartCopyOut({Span(a, to_a), Span(b, to_b)})).ok());
  EXPECT_EQ(a, to_a);
  EXPECT_EQ(b, to_b);
}

TEST(ThreadCopyEngineTest, PollingSaysDoneOnceTheBytesAreThere) {
  ThreadCopyEngine engine;
  const Bytes from = Pattern(5'000'000, 1);
  Bytes to(from.size());
  const CopyTicket ticket = engine.StartCopyIn({Span(from, to)});
  while (!engine.Done(ticket).value()) std::this_thread::yield();
  EXPECT_EQ(from, to);
}

TEST(ThreadCopyEngineTest, TheLastTicketMayBeWaitedForFirst) {
  ThreadCopyEngine engine;
  const Bytes from = Pattern(3'000'000, 1);
  std::vector<Bytes> to(8, Bytes(from.size()));
  std::vector<CopyTicket> tickets;
  for (Bytes& bytes : to) tickets.push_back(engine.StartCopyOut({Span(from, bytes)}));
  for (size_t i = to.size(); i-- > 0;) {
    EXPECT_TRUE(engine.Wait(tickets[i]).ok());
    EXPECT_EQ(to[i], from);
  }
}

TEST(ThreadCopyEngineTest, AfterCancelNeitherEndIsTouched) {
  std::mt19937 random(7);
  ThreadCopyEngine engine;
  const size_t count = 12'000'000;  // three pieces
  for (int i = 0; i < 12; ++i) {
    auto from = std::make_unique<Bytes>(Pattern(count, 1));
    auto to = std::make_unique<Bytes>(count);
    const CopyTicket tickets[] = {engine.StartCopyOut({Span(*from, *to)}), engine.StartCopyOut({Span(*from, *to)})};
    for (uint32_t turns = random() % 200; turns > 0; --turns) std::this_thread::yield();
    const size_t first = random() % 2;  // the one that is copied, the one in the queue, or both have ended
    engine.Cancel(tickets[first]);
    engine.Cancel(tickets[1 - first]);
    std::fill(to->begin(), to->end(), 0);
    EXPECT_EQ(std::count(to->begin(), to->end(), 0), static_cast<int64_t>(count));
  }
}

TEST(ThreadCopyEngineTest, IsDestroyedWithCopiesInTheQueue) {
  const Bytes from = Pattern(30'000'000, 1);
  std::vector<Bytes> to(4, Bytes(from.size()));
  ThreadCopyEngine engine;
  for (Bytes& bytes : to) engine.StartCopyOut({Span(from, bytes)});
}

TEST(ThreadCopyEngineDeathTest, ATicketEndsOnce) {
  EXPECT_DEATH(
      {
        ThreadCopyEngine engine;
        const CopyTicket ticket = engine.StartCopyOut({});
        engine.Wait(ticket).IgnoreError();
        engine.Wait(ticket).IgnoreError();
      },
      "has ended already");
}

}  // namespace
}  // namespace stemma
