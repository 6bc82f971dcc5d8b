// Which axis runs over which network, and what it costs.
#include "server/simulation/host_network.h"

#include <gtest/gtest.h>

#include "common/base/mesh.h"
#include "tests/testing/namespaces.h"

namespace stemma::testing {
namespace {

HostNetworks Hosts(uint32_t ranks) {
  return {.inside = {.name = "in", .bytes_per_s = 100, .start_s = 1, .hop_s = 0.5},
          .between = {.name = "out", .bytes_per_s = 10, .start_s = 2, .hop_s = 4},
          .ranks_per_host = ranks};
}

TEST(HostNetworkTest, AnAxisRunsInsideOfAHostWhereAllItsGroupsDo) {
  Rates rates;
  const v1::Mesh mesh = MakeMesh({.dp = 2, .pp = 2, .cp = 2, .tp = 4});
  const auto names = [&](uint32_t ranks) {
    const AxisNetworks networks = SetNetworks(mesh, Hosts(ranks), rates);
    return std::vector<std::string_view>{networks.tp, networks.cp, networks.pp, networks.dp};
  };
  using Names = std::vector<std::string_view>;
  EXPECT_EQ(names(2), Names({"out", "out", "out", "out"}));
  EXPECT_EQ(names(4), Names({"in", "out", "out", "out"}));
  EXPECT_EQ(names(6), Names({"out", "out", "out", "out"})) << "the second group of tp has ranks 4 to 7";
  EXPECT_EQ(names(8), Names({"in", "in", "out", "out"}));
  EXPECT_EQ(names(16), Names({"in", "in", "in", "out"}));
  EXPECT_EQ(names(32), Names({"in", "in", "in", "in"}));
  EXPECT_EQ(names(33), Names({"in", "in", "in", "in"})) << "all ranks are on one host";
}

// Hosts of four ranks: a copy of two stages of two cp by two tp ranks has two of them.
TEST(HostNetworkTest, ACollectiveGoesThroughAllRanksAndAMessageToANeighbour) {
  Rates rates;
  SetNetworks(MakeMesh({.dp = 3, .pp = 2, .cp = 2, .tp = 2}), Hosts(4), rates);
  EXPECT_DOUBLE_EQ(rates[kTensorByte], 0.01);
  EXPECT_DOUBLE_EQ(rates[kTensorCollective], 1 + 0.5);
  EXPECT_DOUBLE_EQ(rates[kContextByte], 0.01);
  EXPECT_DOUBLE_EQ(rates[kContextCollective], 1 + 0.5);
  EXPECT_DOUBLE_EQ(rates[kStageByte], 0.1);
  EXPECT_DOUBLE_EQ(rates[kStageMessage], 2 + 4);
  // Six ranks share gradients, two on each of three hosts: a ring crosses twice, and has three hops more.
  EXPECT_DOUBLE_EQ(rates[kDataByte], 0.05) << "each host has two links";
  EXPECT_DOUBLE_EQ(rates[kDataCollective], 2 + 2 * 4 + 3 * 0.5);
  EXPECT_DOUBLE_EQ(rates[kPartByte], 0.1) << "from copy to copy, each on hosts of its own";
  EXPECT_DOUBLE_EQ(rates[kPartMessage], 2 + 4);
}

// What a part of a split group takes does not grow with the ranks that have nothing to do with it.
TEST(HostNetworkTest, AMessageBetweenTwoCopiesIsTheSameHoweverManyThereAre) {
  Rates few, many, inside, wide;
  SetNetworks(MakeMesh({.dp = 8}), Hosts(4), few);
  SetNetworks(MakeMesh({.dp = 512}), Hosts(4), many);
  SetNetworks(MakeMesh({.dp = 4}), Hosts(4), inside);
  EXPECT_EQ(few[kPartMessage], many[kPartMessage]);
  EXPECT_EQ(few[kPartByte], many[kPartByte]);
  EXPECT_LT(few[kDataCollective], many[kDataCollective]);
  SetNetworks(MakeMesh({.dp = 2, .tp = 4}), Hosts(4), wide);
  EXPECT_EQ(wide[kPartMessage], many[kPartMessage]) << "each copy fills a host";
  EXPECT_DOUBLE_EQ(inside[kPartByte], 0.01);
  EXPECT_DOUBLE_EQ(inside[kPartMessage], 1 + 0.5);
}

TEST(HostNetworkTest, ManyLinksOfAHostAreAsFastAsItsInsideAtMost) {
  Rates rates;
  SetNetworks(MakeMesh({.dp = 64}), Hosts(16), rates);
  EXPECT_DOUBLE_EQ(rates[kDataByte], 0.01) << "sixteen links of 10, in a host of 100";
  SetNetworks(MakeMesh({.dp = 64}), Hosts(4), rates);
  EXPECT_DOUBLE_EQ(rates[kDataByte], 0.025);
  SetNetworks(MakeMesh({.dp = 8, .tp = 8}), Hosts(8), rates);
  EXPECT_DOUBLE_EQ(rates[kDataByte], 0.1) << "one rank of each group on a host";
}

TEST(HostNetworkTest, AnAxisOfOneRankHasNoNetwork) {
  Rates rates;
  const AxisNetworks networks = SetNetworks(MakeMesh({.tp = 2}), Hosts(8), rates);
  EXPECT_EQ(networks.tp, "in");
  EXPECT_EQ(networks.cp, "");
  EXPECT_EQ(networks.pp, "");
  EXPECT_EQ(networks.dp, "");
}

TEST(HostNetworkTest, EveryNameIsKnownAndNoOther) {
  for (const std::string& name : NetworkNames()) {
    ASSERT_NE(FindNetwork(name), nullptr) << name;
    EXPECT_EQ(FindNetwork(name)->name, name);
    EXPECT_GT(FindNetwork(name)->bytes_per_s, 1e9);
  }
  EXPECT_EQ(FindNetwork("token-ring"), nullptr);
  EXPECT_GT(FindNetwork("nvlink4")->bytes_per_s, FindNetwork("ib-ndr")->bytes_per_s);
}

}  // namespace
}  // namespace stemma::testing
