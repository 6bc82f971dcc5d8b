// Calls that wait come out in order, at their deadlines, or not at all once they left.
#include "server/protocol/request_waiters.h"

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace stemma::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

absl::Time At(int64_t second) { return absl::FromUnixSeconds(second); }

std::vector<CallId> Calls(const std::vector<RequestWaiter>& waiters) {
  std::vector<CallId> calls;
  for (const RequestWaiter& waiter : waiters) calls.push_back(waiter.call);
  return calls;
}

std::vector<std::string> Texts(const std::vector<RequestWaiters::Due>& all) {
  std::vector<std::string> texts;
  for (const RequestWaiters::Due& due : all) texts.push_back(absl::StrCat(due.waiter.call, " ", due.request_id));
  return texts;
}

TEST(RequestWaitersTest, ARequestsCallsComeOutAsTheyCameWhateverTheirNumbers) {
  RequestWaiters waiters;
  EXPECT_TRUE(waiters.empty());
  waiters.Add("a", {.call = 7});
  waiters.Add("b", {.call = 8});
  waiters.Add("a", {.call = 3, .deadline = At(5), .replayed = true});
  EXPECT_THAT(waiters.Take("c"), IsEmpty());
  const std::vector<RequestWaiter> taken = waiters.Take("a");
  EXPECT_THAT(Calls(taken), ElementsAre(7, 3));
  EXPECT_TRUE(taken[1].replayed);
  EXPECT_EQ(waiters.NextDeadline(), absl::InfiniteFuture()) << "it went with its call";
  EXPECT_FALSE(waiters.empty());
  EXPECT_THAT(Calls(waiters.Take("b")), ElementsAre(8));
  EXPECT_TRUE(waiters.empty());
}

TEST(RequestWaitersTest, OnlyThoseThatAreDueComeOutTheEarliestFirst) {
  RequestWaiters waiters;
  waiters.Add("a", {.call = 1, .deadline = At(9)});
  waiters.Add("b", {.call = 2, .deadline = At(4)});
  waiters.Add("a", {.call = 3});
  waiters.Add("a", {.call = 4, .deadline = At(5)});
  EXPECT_EQ(waiters.NextDeadline(), At(4));
  EXPECT_THAT(Texts(waiters.TakeDue(At(3))), IsEmpty());
  EXPECT_THAT(Texts(waiters.TakeDue(At(5))), ElementsAre("2 b", "4 a"));
  EXPECT_EQ(waiters.NextDeadline(), At(9));
  EXPECT_THAT(Calls(waiters.Take("a")), ElementsAre(1, 3));
}

TEST(RequestWaitersTest, ACallThatLeftIsForgotten) {
  RequestWaiters waiters;
  waiters.Add("a", {.call = 1, .deadline = At(1)});
  waiters.Add("a", {.call = 2});
  waiters.Remove(1);
  waiters.Remove(9);
  EXPECT_EQ(waiters.NextDeadline(), absl::InfiniteFuture());
  EXPECT_THAT(Texts(waiters.TakeDue(At(2))), IsEmpty());
  EXPECT_THAT(Calls(waiters.Take("a")), ElementsAre(2));
  waiters.Add("b", {.call = 1});
  EXPECT_THAT(Calls(waiters.Take("b")), ElementsAre(1)) << "may wait again";
}

TEST(RequestWaitersTest, DrawnCallsComeOutAsFromAPlainList) {
  std::mt19937_64 random(20261128);
  RequestWaiters waiters;
  std::vector<RequestWaiters::Due> plain;
  for (CallId call = 1; call <= 4000; ++call) {
    const std::string id = absl::StrCat("r", random() % 5);
    const RequestWaiter waiter = {.call = call,
                                  .deadline = random() % 3 == 0 ? absl::InfiniteFuture() : At(call + random() % 50)};
    waiters.Add(id, waiter);
    plain.push_back({id, waiter});
    if (const CallId left = random() % call + 1; random() % 2 == 0) {
      waiters.Remove(left);
      std::erase_if(plain, [&](const auto& due) { return due.waiter.call == left; });
    }
    if (random() % 8 == 0) {
      std::vector<CallId> expected;
      for (const auto& due : plain) {
        if (due.request_id == id) expected.push_back(due.waiter.call);
      }
      std::erase_if(plain, [&](const auto& due) { return due.request_id == id; });
      ASSERT_EQ(Calls(waiters.Take(id)), expected) << call;
    }
    size_t due = std::erase_if(plain, [&](const auto& one) { return one.waiter.deadline <= At(call); });
    ASSERT_EQ(waiters.TakeDue(At(call)).size(), due) << call;
    ASSERT_EQ(waiters.empty(), plain.empty());
  }
}

}  // namespace
}  // namespace stemma::server
