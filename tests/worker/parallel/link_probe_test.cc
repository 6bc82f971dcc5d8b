// What the probe says of links whose speed is stated. Every rank has a clock of its own, which moves by what its calls
// are stated to take and by nothing else, so no result depends on this machine.
#include "worker/parallel/link_probe.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/mesh_links.h"
#include "glog/logging.h"
#include "tests/testing/linked_rank.h"
#include "tests/testing/namespaces.h"
#include "tests/testing/passed_send.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/thread_communicator.h"

namespace stemma::testing {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(60);  // no test waits so long unless it hangs
// Seconds are agreed in whole nanoseconds: of an exchange of 20 us and more that is less than a part in ten thousand.
constexpr double kTolerance = 1e-3;

class StatedClock final : public Clock {
 public:
  absl::Time Now() const override { return absl::UnixEpoch() + absl::Seconds(now_s_); }
  double MonotonicSeconds() const override { return now_s_; }
  void Sleep(absl::Duration) const override { LOG(FATAL) << "the probe never sleeps"; }
  void Pass(double seconds) { now_s_ += seconds; }

 private:
  double now_s_ = 0;
};

// Seconds that a call is held up; `first`: it is the first one of its size.
using HeldUp = std::function<double(bool first)>;

// Passes calls on to the right rank, and lets the stated time pass for each, and what holds it up.
class StatedRank final : public Communicator {
 public:
  StatedRank(std::unique_ptr<Communicator> right, const Link& link, HeldUp held_up, StatedClock& clock,
             std::set<CollectiveKind>& kinds, int64_t& most_bytes)
      : Communicator(right->axis(), right->rank(), right->size()),
        right_(std::move(right)),
        link_(link),
        held_up_(std::move(held_up)),
        clock_(clock),
        kinds_(kinds),
        most_bytes_(most_bytes) {}

 private:
  StartedCall Start(const CollectiveCall& call) override {
    at::Tensor output = call.output;
    if (call.kind == CollectiveKind::kAgree) {  // what ranks say to each other beside the exchanges takes no time here
      absl::Status status = right_->Agree(call.name, {output.data_ptr<int64_t>(), static_cast<size_t>(output.numel())});
      return {[status] { return status; }};
    }
    const at::Tensor& whole = call.kind == CollectiveKind::kReduceScatterSum || !output.defined() ? call.input : output;
    const auto whole_bytes = static_cast<int64_t>(whole.nbytes());
    double seconds = link_.seconds(CollectiveBytes(call.kind, whole_bytes, size()));
    seconds += held_up_(whole_bytes != last_bytes_);
    last_bytes_ = whole_bytes;
    kinds_.insert(call.kind);
    most_bytes_ = std::max(most_bytes_, whole_bytes);
    const auto passing = [this, seconds](StartedCall started) -> StartedCall {
      return {[this, seconds, wait = std::move(started.wait)] {
        clock_.Pass(seconds);
        return wait();
      }};
    };
    if (call.kind == CollectiveKind::kSend) return passing(PassSend(*right_, call));
    absl::Status status;
    if (call.kind == CollectiveKind::kReceive) {
      status = right_->Receive(call.name, output, call.peer);
    } else if (call.kind == CollectiveKind::kAllGather) {
      status = right_->AllGather(call.name, call.input, output);
    } else {
      CHECK(call.kind == CollectiveKind::kReduceScatterSum) << "no probe makes a " << KindName(call.kind);
      status = right_->ReduceScatterSum(call.name, call.input, output);
    }
    return passing({[status] { return status; }});
  }

  const std::unique_ptr<Communicator> right_;
  const Link link_;
  const HeldUp held_up_;
  StatedClock& clock_;
  std::set<CollectiveKind>& kinds_;
  int64_t& most_bytes_;
  int64_t last_bytes_ = -1;
};

// What is stated of a rank's link of an axis.
using StatedLink = std::function<Link(uint32_t rank, const std::string& axis)>;

struct Probed {
  std::vector<AxisLink> links;
  double took_s = 0;                                      // by the rank's clock
  std::map<std::string, CollectiveTotals> data_totals;    // what its data communicator counted
  std::map<std::string, std::set<CollectiveKind>> kinds;  // that were timed, by axis
  std::map<std::string, int64_t> most_bytes;              // of a timed one's whole tensor, by axis
};

// What holds up the calls of a rank.
using StatedHeldUp = std::function<HeldUp(uint32_t rank)>;

// The first call of each size takes so much more, as one that opens a connection does.
StatedHeldUp AtFirst(double first_s) {
  return [first_s](uint32_t) { return [first_s](bool first) { return first ? first_s : 0; }; };
}

std::vector<Probed> Probe(const v1::Mesh& mesh, const StatedLink& stated, const StatedHeldUp& held_up = AtFirst(0)) {
  std::vector<MeshRanks> ranks = MakeThreadMesh(mesh, /*kv_replicas=*/1, kTimeout);
  std::vector<StatedClock> clocks(ranks.size());
  std::vector<Probed> probed(ranks.size());
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < ranks.size(); ++rank) {
    MeshRanks& of_rank = ranks[rank];
    const std::map<std::string, std::unique_ptr<Communicator>*> axes = {
        {"data", &of_rank.data}, {"cp", &of_rank.cp}, {"tp", &of_rank.tp}, {"pp", &of_rank.pp}};
    for (const auto& [axis, communicator] : axes) {
      *communicator =
          std::make_unique<StatedRank>(std::move(*communicator), stated(rank, axis), held_up(rank), clocks[rank],
                                       probed[rank].kinds[axis], probed[rank].most_bytes[axis]);
    }
    threads.emplace_back([&of_rank, &clock = clocks[rank], &to = probed[rank]] {
      absl::StatusOr<std::vector<AxisLink>> links = ProbeLinks(of_rank, at::kCPU, clock);
      ASSERT_THAT(links.status(), IsOk());
      to.links = *std::move(links);
      to.took_s = clock.MonotonicSeconds();
      to.data_totals = of_rank.data->stats().Read();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return probed;
}

StatedLink Everywhere(const Link& link) {
  return [link](uint32_t, const std::string&) { return link; };
}

void ExpectLink(const AxisLink& link, const Link& stated) {
  EXPECT_NEAR(link.message_s, stated.delay_s, kTolerance * stated.delay_s) << link.axis;
  EXPECT_NEAR(link.byte_s * stated.bytes_per_s, 1, kTolerance) << link.axis;
}

TEST(LinkProbeTest, TwoSizesOfExchangesGiveAMessageAndAByte) {
  // Two messages of 3 s each, and 10 or 110 bytes of 2 us.
  const AxisLink link = FitLink({10, 6 + 2e-5, 6 + 2e-5}, {110, 6 + 22e-5, 6 + 22e-5});
  EXPECT_NEAR(link.message_s, 3, 1e-9);
  EXPECT_NEAR(link.byte_s, 2e-6, 1e-12);
}

TEST(LinkProbeTest, NoiseNeverGivesALinkThatNoNetworkHas) {
  const AxisLink inverted = FitLink({10, 5e-5, 5e-5}, {1'000'000, 4e-5, 4e-5}), still = FitLink({10, 0, 0}, {20, 0, 0}),
                 stuck = FitLink({10, 1e9, 1e9}, {20, 1e12, 1e12});
  EXPECT_EQ(inverted.byte_s, kLinkByteSecondsMin);
  EXPECT_NEAR(inverted.message_s, 2.5e-5, 1e-8);
  EXPECT_EQ(still.byte_s, kLinkByteSecondsMin);
  EXPECT_EQ(still.message_s, kLinkMessageSecondsMin);
  EXPECT_EQ(stuck.byte_s, kLinkByteSecondsMax);
  EXPECT_EQ(stuck.message_s, kLinkMessageSecondsMax);
}

TEST(LinkProbeTest, WhatHoldsExchangesUpIsNoBytes) {
  const AxisLink link = FitLink({0, 2e-4, 6e-4}, {1'000'000, 2e-4 + 1e-3, 9});
  EXPECT_NEAR(link.byte_s, 1e-9, 1e-14);
  EXPECT_NEAR(link.message_s, 3e-4, 1e-12) << "but messages of steps are held up as well";
}

TEST(LinkProbeTest, TheMedianIsNotMovedByOneThatWasHeldUp) {
  EXPECT_EQ(MedianSeconds({3, 1, 1000, 2, 4}), 3);
  EXPECT_EQ(MedianSeconds({1, 2}), 2);
  EXPECT_EQ(MedianSeconds({7}), 7);
}

// Each axis of a mesh of all of them has a network of its own, and every rank hears all of them. Copies of the model
// speak over the network of data.
TEST(LinkProbeTest, EachAxisIsToldByItself) {
  const std::map<std::string, Link> stated = {
      {"data", {3e-4, 2e8}}, {"dp", {3e-4, 2e8}}, {"cp", {5e-5, 1e9}}, {"tp", {2e-5, 5e9}}, {"pp", {1e-4, 3e9}}};
  const v1::Mesh mesh = MakeMesh({.dp = 2, .pp = 3, .cp = 2, .tp = 2});
  for (const Probed& probed : Probe(mesh, [&](uint32_t, const std::string& axis) { return stated.at(axis); })) {
    ASSERT_EQ(probed.links.size(), LinksOf(mesh).size());
    for (size_t i = 0; i < probed.links.size(); ++i) {
      const AxisLink& link = probed.links[i];
      EXPECT_EQ(link.axis, LinksOf(mesh)[i].axis);
      EXPECT_EQ(link.ranks, static_cast<int>(LinksOf(mesh)[i].ranks)) << link.axis;
      ExpectLink(link, stated.at(link.axis));
    }
  }
}

// Bytes are those that a rank sends, so the link is the same one whatever the number of ranks.
TEST(LinkProbeTest, TheNumberOfRanksDoesNotChangeALink) {
  const Link stated = {4e-5, 1e9};
  for (const uint32_t ranks : {2, 3, 5}) {
    for (const v1::Mesh& mesh : {MakeMesh({.dp = ranks}), MakeMesh({.dp = ranks, .cp = 2}), MakeMesh({.cp = ranks}),
                                 MakeMesh({.pp = ranks}), MakeMesh({.tp = ranks})}) {
      for (const Probed& probed : Probe(mesh, Everywhere(stated))) {
        ASSERT_EQ(probed.links.size(), LinksOf(mesh).size()) << MeshText(mesh);
        for (const AxisLink& link : probed.links) ExpectLink(link, stated);
      }
    }
  }
}

TEST(LinkProbeTest, StagesAndCopiesSpeakToTheirNeighboursAndOtherAxesInTheirCollectives) {
  using enum CollectiveKind;
  const std::set<CollectiveKind> collectives = {kAllGather, kReduceScatterSum}, messages = {kSend, kReceive};
  for (const Probed& probed : Probe(MakeMesh({.dp = 2, .pp = 2, .cp = 2, .tp = 2}), Everywhere({4e-5, 1e9}))) {
    EXPECT_EQ(probed.kinds.at("pp"), messages);
    for (const char* axis : {"cp", "tp"}) EXPECT_EQ(probed.kinds.at(axis), collectives) << axis;
    EXPECT_EQ(probed.kinds.at("data"), (std::set<CollectiveKind>{kAllGather, kReduceScatterSum, kSend, kReceive}));
  }
}

TEST(LinkProbeTest, AnotherLinkIsToldApart) {
  const Link one = {4e-5, 1e9}, later = {8e-5, 1e9}, narrower = {4e-5, 5e8};
  const auto probed = [](const Link& link) { return Probe(MakeMesh({.tp = 2}), Everywhere(link))[0].links[0]; };
  ExpectLink(probed(one), one);
  EXPECT_NEAR(probed(later).message_s / probed(one).message_s, 2, 1e-2);
  EXPECT_NEAR(probed(narrower).byte_s / probed(one).byte_s, 2, 1e-2);
}

// A link whose messages are slow beside its bytes is asked with the largest ones; one on which they are clear is not.
TEST(LinkProbeTest, OnlyAFastLinkIsAskedWithTheLargestMessages) {
  const auto bytes_of = [](const Link& link) {
    return Probe(MakeMesh({.tp = 2}), Everywhere(link))[0].most_bytes.at("tp");
  };
  EXPECT_EQ(bytes_of({4e-5, 4e11}), 64 << 20);
  EXPECT_EQ(bytes_of({4e-5, 5e10}), 16 << 20);
  EXPECT_LE(bytes_of({4e-5, 1e9}), 4 << 20);
}

TEST(LinkProbeTest, TheSlowestRankDecidesForItsGroupAlone) {
  const Link fast = {4e-5, 1e9}, slow = {9e-5, 2e8};
  const v1::Mesh mesh = MakeMesh({.dp = 2, .tp = 3});  // rank 4 is in the second group of tp
  const std::vector<Probed> probed =
      Probe(mesh, [&](uint32_t rank, const std::string& axis) { return axis == "tp" && rank == 4 ? slow : fast; });
  for (uint32_t rank = 0; rank < 6; ++rank) {
    ASSERT_EQ(probed[rank].links.back().axis, "tp");
    ExpectLink(probed[rank].links.back(), rank < 3 ? fast : slow);
  }
}

// Opening connections, and touching memory for the first time, is no part of what a step pays.
TEST(LinkProbeTest, TheFirstExchangeOfASizeIsNotCounted) {
  const Link stated = {4e-5, 1e9};
  for (const double first_s : {1e-2, 1.0}) {
    for (const v1::Mesh& mesh : {MakeMesh({.dp = 2}), MakeMesh({.pp = 2})}) {
      ExpectLink(Probe(mesh, Everywhere(stated), AtFirst(first_s))[0].links[0], stated);
    }
  }
}

// Ranks that share the cores of a busy machine are held up for milliseconds, which is many times what their bytes take.
// Drawn: for how long, and the link. What is told of bytes is within three times the truth: an exchange that is four
// times a message is three parts bytes, and what held it up is of a message's length.
TEST(LinkProbeTest, ABusyMachineMakesNoSlowLink) {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    std::mt19937_64 draw(seed);
    const Link stated = {1e-4, std::uniform_real_distribution<double>(5e8, 4e9)(draw)};
    const double held_s = std::uniform_real_distribution<double>(5e-4, 4e-3)(draw);
    const auto held_up = [&](uint32_t rank) -> HeldUp {
      const auto chance = std::make_shared<std::mt19937_64>(seed * 100 + rank);
      return [chance, held_s](bool) { return std::exponential_distribution<double>(1 / held_s)(*chance); };
    };
    const std::vector<Probed> probed = Probe(MakeMesh({.dp = 4}), Everywhere(stated), held_up);
    for (const AxisLink& link : probed[0].links) {
      const double times = link.byte_s * stated.bytes_per_s;
      EXPECT_LT(times, 3) << "seed " << seed << ", " << link.axis << ", held up for " << held_s << " s";
      EXPECT_GT(times, 1.0 / 3) << "seed " << seed << ", " << link.axis << ", held up for " << held_s << " s";
    }
  }
}

// However slow a link is, an axis ends after its time and at most two exchanges of each size that is tried: of the
// larger ones only where their bytes are few beside the message. The clocks of the ranks differ by ten times, and still
// all of them stop together.
TEST(LinkProbeTest, ASlowLinkIsProbedForAShortTime) {
  for (const Link& stated : {Link{1e-3, 1e6}, Link{0.05, 1e9}, Link{1e-4, 1e7}}) {
    const v1::Mesh mesh = MakeMesh({.dp = 3});
    const std::vector<Probed> probed = Probe(mesh, [&](uint32_t rank, const std::string&) {
      return Link{stated.delay_s / (rank == 0 ? 1 : 10), stated.bytes_per_s * (rank == 0 ? 1 : 10)};
    });
    double sizes_s = 0;
    for (const int64_t bytes : {4, 64 << 10, 512 << 10, 4 << 20, 16 << 20, 64 << 20}) {
      const double collective_s = stated.seconds(CollectiveBytes(CollectiveKind::kAllGather, bytes, 3));
      const double pairs_s = 2 * stated.seconds(bytes);  // two pairs, one after the other
      sizes_s += 2 * 2 * (collective_s + pairs_s);
      if (stated.seconds(bytes) > 4 * stated.delay_s) break;
    }
    EXPECT_LT(probed[0].took_s, 2 * kLinkProbeSeconds + sizes_s);
    for (const Probed& one : probed) {
      ExpectLink(one.links.at(0), stated);
    }
    // Those at the ends have one neighbour each.
    const auto calls = [&](size_t rank) { return probed[rank].data_totals.at(kLinkProbeName).calls; };
    EXPECT_EQ(calls(2), calls(0));
    EXPECT_GT(calls(1), calls(0));
  }
}

TEST(LinkProbeTest, OneRankHasNothingToProbe) {
  StatedClock clock;
  const auto links = ProbeLinks(OnlyRank(), at::kCPU, clock);
  ASSERT_THAT(links.status(), IsOk());
  EXPECT_TRUE(links->empty());
}

// What steps report is told by the names of their calls, and by differences: the probe has a name of its own.
TEST(LinkProbeTest, ItsBytesAreCountedUnderItsOwnName) {
  for (const Probed& probed : Probe(MakeMesh({.dp = 2}), Everywhere({4e-5, 1e9}))) {
    ASSERT_EQ(probed.data_totals.size(), 1u);
    EXPECT_EQ(probed.data_totals.begin()->first, kLinkProbeName);
  }
}

TEST(LinkProbeTest, ARankThatHasGoneEndsTheProbe) {
  std::vector<MeshRanks> ranks = MakeThreadMesh(MakeMesh({.tp = 2}), 1, kTimeout);
  ranks[1].tp->GiveUp();
  StatedClock clock;
  EXPECT_TRUE(absl::IsUnavailable(ProbeLinks(ranks[0], at::kCPU, clock).status()));
}

}  // namespace
}  // namespace stemma::testing
