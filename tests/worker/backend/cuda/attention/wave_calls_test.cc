#include "worker/backend/cuda/attention/wave_calls.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/worker/backend/cuda/attention/wave_cases.h"

namespace stemma::testing {
namespace {

using worker::cuda::AncestorCall;
using worker::cuda::JoinedRows;
using worker::cuda::OffsetsOf;
using worker::cuda::WaveCalls;
using worker::cuda::WaveCallsOf;

bool Always(const AncestorCall&) { return true; }

WaveCalls CallsOf(const WaveInputs& in) { return WaveCallsOf(in.batch, in.q_HTE.size(1), Always); }

TEST(WaveCallsTest, SpansWithoutRowsAndAncestorsWithoutKeysAreInNoCall) {
  const WaveInputs in =
      MakeWave({.ancestor_rows = {4, 0, 3},
                .spans = {{2, -1}, {0, 0}, {3, 0}, {1, 0}, {2, 1}, {0, -1}, {5, 2}, {0, 2}, {1, -1}}});
  const WaveCalls calls = CallsOf(in);
  EXPECT_EQ(calls.own_rows, (std::vector<int64_t>{2, 3, 1, 2, 5, 1}));
  ASSERT_EQ(calls.ancestors.size(), 2) << "rows of the empty ancestor lie between";
  EXPECT_EQ(calls.ancestors[0].begin(), 2);
  EXPECT_EQ(calls.ancestors[0].end(), 6);
  EXPECT_EQ(calls.ancestors[1].begin(), 8);
  EXPECT_EQ(calls.ancestors[1].end(), 13);
}

// Rows between two spans of one ancestor that see none of it.
TEST(WaveCallsTest, AnAncestorsRowsApartAreTwoCalls) {
  const WaveCalls calls = CallsOf(MakeWave({.ancestor_rows = {4}, .spans = {{2, 0}, {3, -1}, {1, 0}}}));
  ASSERT_EQ(calls.ancestors.size(), 2);
  EXPECT_EQ(calls.ancestors[0].end(), 2);
  EXPECT_EQ(calls.ancestors[1].begin(), 5);
}

TEST(WaveCallsTest, KeysWhoseValuesAreNoNeighboursAreTwoCalls) {
  WaveInputs in = MakeWave({.ancestor_rows = {4, 2}, .spans = {{2, 0}, {3, 1}}});
  EXPECT_EQ(CallsOf(in).ancestors.size(), 1) << "control";
  in.batch.ancestors[1].v_CKE = in.batch.ancestors[1].v_CKE.clone();
  EXPECT_EQ(CallsOf(in).ancestors.size(), 2);
}

TEST(WaveCallsTest, NeighboursAreJoinedInTheirOrderOnly) {
  const WaveCase ordered{.ancestor_rows = {4, 2, 3}, .spans = {{2, 0}, {3, 1}, {1, 2}}};
  const WaveInputs in = MakeWave(ordered);
  const WaveCalls calls = CallsOf(in);
  ASSERT_EQ(calls.ancestors.size(), 1);
  ASSERT_EQ(calls.ancestors[0].sequences.size(), 3);
  EXPECT_EQ(calls.ancestors[0].k_CKE.size(0), 9);
  EXPECT_TRUE(calls.ancestors[0].v_CKE.narrow(0, 6, 3).equal(in.batch.ancestors[2].v_CKE));

  WaveCase turned = ordered;
  turned.spans = {{2, 1}, {3, 0}, {1, 2}};
  EXPECT_EQ(CallsOf(MakeWave(turned)).ancestors.size(), 3);
  WaveCase gap = ordered;
  gap.spans = {{2, 0}, {1, 2}};
  EXPECT_EQ(CallsOf(MakeWave(gap)).ancestors.size(), 2);
}

TEST(WaveCallsTest, CallsThatAreToStandAloneDo) {
  const WaveInputs in = MakeWave({.ancestor_rows = {4, 2, 3}, .spans = {{2, 0}, {3, 1}, {1, 2}}});
  const auto small = [](const AncestorCall& call) { return call.k_CKE.size(0) < 4; };
  const WaveCalls calls = WaveCallsOf(in.batch, 6, small);
  ASSERT_EQ(calls.ancestors.size(), 2);
  EXPECT_EQ(calls.ancestors[0].sequences.size(), 1);
  EXPECT_EQ(calls.ancestors[1].sequences.size(), 2);
}

TEST(WaveCallsTest, JoinedRowsAreAViewOrNothing) {
  const at::Tensor all = at::arange(60).view({10, 2, 3});
  const at::Tensor joined = JoinedRows(all.narrow(0, 1, 3), all.narrow(0, 4, 2));
  EXPECT_TRUE(joined.equal(all.narrow(0, 1, 5)));
  EXPECT_TRUE(joined.is_alias_of(all));
  EXPECT_FALSE(JoinedRows(all.narrow(0, 1, 3), all.narrow(0, 5, 2)).defined()) << "a gap";
  EXPECT_FALSE(JoinedRows(all.narrow(0, 4, 2), all.narrow(0, 1, 3)).defined()) << "the other order";
  EXPECT_FALSE(JoinedRows(all.narrow(0, 1, 3), all.clone().narrow(0, 4, 2)).defined()) << "another storage";
  EXPECT_FALSE(JoinedRows(all.narrow(0, 1, 3), all.narrow(0, 4, 2).narrow(1, 0, 1)).defined()) << "other heads";
}

TEST(WaveCallsTest, OffsetsAreTheRunningSum) {
  EXPECT_EQ(OffsetsOf({3, 1, 5}), (std::vector<int32_t>{0, 3, 4, 9}));
  EXPECT_EQ(OffsetsOf({}), (std::vector<int32_t>{0}));
}

TEST(WaveCallsDeathTest, SpansMustCoverTheRows) {
  WaveInputs in = MakeWave({.spans = {{2, -1}, {3, -1}}});
  EXPECT_DEATH(WaveCallsOf(in.batch, 6, Always), "cover all rows");
  in.batch.spans[1].begin = 3;
  EXPECT_DEATH(WaveCallsOf(in.batch, 5, Always), "adjacent");
}

}  // namespace
}  // namespace stemma::testing
