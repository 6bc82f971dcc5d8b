#include "server/protocol/link_reports.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "common/base/mesh.h"
#include "common/base/mesh_links.h"
#include "gtest/gtest.h"
#include "tests/server/protocol/link_info.h"
#include "tests/testing/status_matchers.h"

namespace stemma::server {
namespace {

using testing::Invalid;
using testing::IsOk;
using testing::Link;

LinkReports Reports(const std::vector<v1::LinkInfo>& links) { return {links.begin(), links.end()}; }

TEST(LinkReportsTest, LinksOfAMeshAreItsAxesOfSeveralRanks) {
  EXPECT_TRUE(LinksOf(v1::Mesh()).empty());
  std::string text;
  for (const MeshLink& link : LinksOf(MakeMesh({.dp = 2, .pp = 3, .cp = 4, .tp = 5}))) {
    text += std::string(link.axis) + " " + std::to_string(link.ranks) + ", ";
  }
  EXPECT_EQ(text, "data 8, dp 2, cp 4, tp 5, pp 3, ");
  ASSERT_EQ(LinksOf(MakeMesh({.pp = 2})).size(), 1u);
}

TEST(LinkReportsTest, WhatAProbeMayMeasurePasses) {
  EXPECT_THAT(CheckLinks({}), IsOk());
  EXPECT_THAT(CheckLinks(Reports({Link("data", 2, kLinkMessageSecondsMin, kLinkByteSecondsMax),
                                  Link("cp", 2, kLinkMessageSecondsMax, kLinkByteSecondsMin), Link("tp", 2, 1e-4, 1e-9),
                                  Link("pp", 2, 1e-4, 1e-9), Link("dp", 2, 1e-4, 1e-9)})),
              IsOk());
}

TEST(LinkReportsTest, NumbersOfNoNetworkAreRefusedByTheirField) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  for (const double seconds : {0.0, -0.0, -1e-4, 1e-8, 61.0, 1e300, kInf, -kInf, std::nan(""), 5e-324}) {
    EXPECT_THAT(CheckLinks(Reports({Link("tp", 2, seconds, 1e-9)})), Invalid("ready.links.message_s")) << seconds;
  }
  for (const double seconds : {0.0, -1e-9, 1e-14, 2e-3, 1e300, kInf, -kInf, std::nan(""), 5e-324}) {
    EXPECT_THAT(CheckLinks(Reports({Link("tp", 2, 1e-4, seconds)})), Invalid("ready.links.byte_s")) << seconds;
  }
}

TEST(LinkReportsTest, AxesAreOfAFixedListAndComeOnce) {
  for (const std::string& axis : {std::string(), std::string("ep"), std::string("TP"), std::string("tp "),
                                  std::string("\xff\n\x1b[2J"), std::string(1 << 20, 'x')}) {
    const absl::Status status = CheckLinks(Reports({Link(axis, 2, 1e-4, 1e-9)}));
    EXPECT_THAT(status, Invalid("ready.links.axis"));
    EXPECT_LT(status.message().size(), 200u) << "a stranger's text is not repeated";
  }
  EXPECT_THAT(CheckLinks(Reports({Link("tp", 2, 1e-4, 1e-9), Link("tp", 2, 1e-4, 1e-9)})), Invalid("tp twice"));
  EXPECT_THAT(CheckLinks(Reports(std::vector<v1::LinkInfo>(6, Link("tp", 2, 1e-4, 1e-9)))), Invalid("6 entries"));
}

TEST(LinkReportsTest, RanksAreThoseOfTheMesh) {
  const v1::Mesh mesh = MakeMesh({.dp = 3, .cp = 2});
  EXPECT_THAT(CheckLinksOfMesh(
                  mesh, Reports({Link("data", 6, 1e-4, 1e-9), Link("dp", 3, 1e-4, 1e-9), Link("cp", 2, 1e-4, 1e-9)})),
              IsOk());
  for (const v1::LinkInfo& link : {Link("data", 3, 1e-4, 1e-9), Link("cp", 3, 1e-4, 1e-9), Link("tp", 1, 1e-4, 1e-9),
                                   Link("tp", 2, 1e-4, 1e-9), Link("cp", 0, 1e-4, 1e-9), Link("dp", 6, 1e-4, 1e-9)}) {
    EXPECT_THAT(CheckLinksOfMesh(mesh, Reports({link})), Invalid("ready.links.ranks of " + link.axis()));
  }
}

TEST(LinkReportsTest, OfEachAxisTheSlowestRankCounts) {
  std::vector<v1::LinkInfo> slowest;
  MergeLinks(Reports({Link("data", 4, 1e-4, 3e-9), Link("tp", 2, 5e-5, 1e-9)}), slowest);
  MergeLinks(Reports({Link("tp", 2, 7e-5, 5e-10), Link("data", 4, 2e-4, 4e-9)}), slowest);
  MergeLinks({}, slowest);
  MergeLinks(Reports({Link("data", 4, 1e-5, 1e-9)}), slowest);
  ASSERT_EQ(slowest.size(), 2u);
  EXPECT_EQ(slowest[0].axis(), "data");
  EXPECT_EQ(slowest[0].ranks(), 4u);
  EXPECT_EQ(slowest[0].message_s(), 2e-4);
  EXPECT_EQ(slowest[0].byte_s(), 4e-9);
  EXPECT_EQ(slowest[1].message_s(), 7e-5) << "a message and a byte by themselves";
  EXPECT_EQ(slowest[1].byte_s(), 1e-9);
}

TEST(LinkReportsTest, RoundingMovesARateByLessThanAFifthAndNoiseSeldomMovesIt) {
  EXPECT_EQ(RoundedSeconds(1), 1);
  EXPECT_EQ(RoundedSeconds(0.25), 0.25);
  EXPECT_EQ(RoundedSeconds(1.1), 1);
  EXPECT_EQ(RoundedSeconds(1.3), std::sqrt(2));
  const double step = std::sqrt(std::sqrt(2));
  double moved = 0, probes = 0;
  for (int percent = 0; percent < 3000; ++percent) {
    const double seconds = kLinkByteSecondsMin * std::pow(1.01, percent);
    const double rounded = RoundedSeconds(seconds);
    EXPECT_LE(rounded / seconds, step * 1.0001);
    EXPECT_GE(rounded / seconds, 1 / step / 1.0001);
    moved += RoundedSeconds(seconds * 1.03) == rounded ? 0 : 1;
    ++probes;
  }
  EXPECT_NEAR(moved / probes, std::log(1.03) / std::log(std::sqrt(2)), 0.02) << "of two that differ by 3 %";
}

TEST(LinkReportsTest, EachAxisHasItsOwnRatesAndTheRestKeepTheirs) {
  Rates before;
  for (size_t i = 0; i < before.seconds.size(); ++i) before.seconds[i] = 1 + static_cast<double>(i);
  const std::vector<v1::LinkInfo> links = {Link("data", 2, 1.0 / 4, 1.0 / 1024), Link("cp", 2, 1.0 / 8, 1.0 / 2048),
                                           Link("tp", 2, 1.0 / 16, 1.0 / 4096)};
  const Rates rates = WithLinks(before, links);
  Rates expected = before;
  expected[kDataCollective] = 1.0 / 4;
  expected[kDataByte] = 1.0 / 1024;
  expected[kContextCollective] = 1.0 / 8;
  expected[kContextByte] = 1.0 / 2048;
  expected[kTensorCollective] = 1.0 / 16;
  expected[kTensorByte] = 1.0 / 4096;
  EXPECT_EQ(rates.seconds, expected.seconds) << "stages were not measured";
  const std::vector<v1::LinkInfo> stages = {Link("pp", 2, 1.0 / 32, 1.0 / 8192)};
  EXPECT_EQ(WithLinks(before, stages)[kStageMessage], 1.0 / 32);
  EXPECT_EQ(WithLinks(before, stages)[kStageByte], 1.0 / 8192);
  const std::vector<v1::LinkInfo> copies = {Link("dp", 2, 1.0 / 64, 1.0 / 16384)};
  Rates parts = before;
  parts[kPartMessage] = 1.0 / 64;
  parts[kPartByte] = 1.0 / 16384;
  EXPECT_EQ(WithLinks(before, copies).seconds, parts.seconds);
}

}  // namespace
}  // namespace stemma::server
