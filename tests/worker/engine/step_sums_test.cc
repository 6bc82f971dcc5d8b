#include "worker/engine/step_sums.h"

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/testing/step_sums.h"
#include "worker/engine/copy_agreement.h"
#include "worker/engine/copy_totals.h"
#include "worker/engine/entry_log_probs.h"
#include "worker/engine/partial_gradients.h"
#include "worker/model/context_exchange.h"
#include "worker/model/sharded_units.h"
#include "worker/model/stage_links.h"
#include "worker/ops/tensor_parallel.h"

namespace stemma::worker {
namespace {

TEST(StepSumsTest, EveryNumberOfAPassTravelsUnderItsOwnName) {
  PassSums pass;
  pass.loss = {.pg = 1, .kl = 2, .entropy = 3, .clipped = 7, .clipped_lower = 8, .neg_log_ratio = 5, .tokens = 6};
  pass.loss.plain_entropy = 4;
  pass.tokens_computed = 9;
  pass.tokens_logical = 10;
  pass.prefix_forward_s = 11;
  pass.suffix_s = 12;
  pass.prefix_backward_s = 13;
  pass.prefix_forward_bytes = 14;
  pass.suffix_bytes = 17;
  pass.prefix_backward_bytes = 16;
  pass.split_s = 27;
  pass.split_bytes = 28;
  pass.offload.peak_host_bytes = 19;
  pass.offload.bytes_out = 20;
  pass.offload.bytes_in = 21;
  pass.offload.demand_loads = 22;
  pass.offload.waits = 23;
  const std::map<std::string, double> expected = {{"policy_loss", 1},
                                                  {"kl_loss", 2},
                                                  {"entropy_loss", 3},
                                                  {"entropy_nats", 4},
                                                  {"neg_log_ratio_nats", 5},
                                                  {"loss_tokens", 6},
                                                  {"clipped_tokens", 7},
                                                  {"clipped_lower_tokens", 8},
                                                  {"computed_rows", 9},
                                                  {"logical_rows", 10},
                                                  {"prefix_forward_s", 11},
                                                  {"suffix_s", 12},
                                                  {"prefix_backward_s", 13},
                                                  {"prefix_forward_bytes", 14},
                                                  {"suffix_bytes", 17},
                                                  {"prefix_backward_bytes", 16},
                                                  {"peak_bytes", 17},
                                                  {"state_bytes", 0},
                                                  {"host_bytes", 19},
                                                  {"offload_out_bytes", 20},
                                                  {"offload_in_bytes", 21},
                                                  {"offload_demand_loads", 22},
                                                  {"offload_waits", 23},
                                                  {"agree_s", 0},
                                                  {"reduce_s", 0},
                                                  {"reduce_bytes", 0},
                                                  {"split_s", 27},
                                                  {"split_bytes", 28},
                                                  {"reduce_overlapped_s", 0},
                                                  {"tensor_parallel_s", 0},
                                                  {"tensor_parallel_bytes", 0},
                                                  {"context_parallel_s", 0},
                                                  {"context_parallel_bytes", 0},
                                                  {"pipeline_s", 0},
                                                  {"pipeline_bytes", 0},
                                                  {"parameters_s", 0},
                                                  {"log_probs_s", 0},
                                                  {"parameters_bytes", 0}};
  EXPECT_EQ(testing::SumsByName(StepSumsOf(pass)), expected) << "a field of StepSums is missing here, or is mixed up";
}

TEST(StepSumsTest, WhatAStepExchangedIsCountedFromItsBegin) {
  const CopyTotals before = {.tensor_parallel = {.bytes = 1, .sent = 90, .seconds = 2},
                             .context_parallel = {.bytes = 3, .sent = 90, .seconds = 4},
                             .parameters = {.bytes = 5, .sent = 90, .seconds = 6},
                             .pipeline = {.bytes = 90, .sent = 7, .seconds = 8}};
  const CopyTotals after = {.tensor_parallel = {.bytes = 11, .sent = 900, .seconds = 22},
                            .context_parallel = {.bytes = 33, .sent = 900, .seconds = 44},
                            .parameters = {.bytes = 55, .sent = 900, .seconds = 66},
                            .pipeline = {.bytes = 900, .sent = 77, .seconds = 88}};
  internal::v1::StepSums sums;
  SetExchanged(before, after, sums);
  std::map<std::string, double> exchanged = testing::SumsByName(sums);
  std::erase_if(exchanged, [](const auto& sum) { return sum.second == 0; });
  const std::map<std::string, double> expected = {{"tensor_parallel_bytes", 10},  {"tensor_parallel_s", 20},
                                                  {"context_parallel_bytes", 30}, {"context_parallel_s", 40},
                                                  {"parameters_bytes", 50},       {"parameters_s", 60},
                                                  {"pipeline_bytes", 70},         {"pipeline_s", 80}};
  EXPECT_EQ(exchanged, expected) << "messages of stages are counted where they are sent";
}

// By the numbers of calls: with one rank no byte moves.
TEST(StepSumsTest, EveryExchangeInsideOfACopyIsCounted) {
  const MeshRanks ranks = OnlyRank();
  at::Tensor value = at::zeros({1});
  const auto call = [&](Communicator& axis, const std::vector<const char*>& names) {
    for (const char* name : names) EXPECT_EQ(axis.Broadcast(name, value, /*root=*/0), absl::OkStatus());
  };
  call(*ranks.tp, {kRowsName, kRowSumsName, kVocabularyName, kPartialGradientsName, "other"});
  call(*ranks.kv, {kPartialGradientsName, kPartialGradientsName, "other"});
  call(*ranks.cp, {kPrefixKvName, kPrefixGradientsName, kCutKvName, kCutGradientsName, kCutLogProbsName,
                   kEntryLogProbsName, kWavesEndedName});
  call(*ranks.data, {kUnitName, kUnitGradientsName, "other"});
  call(*ranks.pp, {kHiddenName, kHiddenGradientsName, kWordName, kPartialGradientsName, "other"});
  const CopyTotals totals = ReadCopyTotals(ranks);
  EXPECT_EQ(totals.tensor_parallel.calls, 4 + 2);
  EXPECT_EQ(totals.context_parallel.calls, 6) << "of waiting for other ranks' waves the seconds alone";
  EXPECT_EQ(totals.parameters.calls, 2);
  EXPECT_EQ(totals.pipeline.calls, 4);
}

TEST(StepSumsTest, OffloadsOfClustersAddUpAndPeaksAreTheHighest) {
  PassSums pass;
  for (const int64_t peak : {3, 9, 6}) {
    pass.AddOffload({.bytes_out = 1, .bytes_in = 2, .demand_loads = 3, .waits = 4, .peak_host_bytes = peak});
    pass.AddPeak(OperationKind::kPrefixForward, peak);
    pass.AddPeak(OperationKind::kWaveBackward, 10 * peak);
    pass.AddPeak(OperationKind::kPrefixBackward, 100 * peak);
  }
  EXPECT_EQ(pass.offload.bytes_out, 3);
  EXPECT_EQ(pass.offload.bytes_in, 6);
  EXPECT_EQ(pass.offload.demand_loads, 9);
  EXPECT_EQ(pass.offload.waits, 12);
  EXPECT_EQ(pass.offload.peak_host_bytes, 9);
  EXPECT_EQ(pass.prefix_forward_bytes, 9);
  EXPECT_EQ(pass.suffix_bytes, 90);
  EXPECT_EQ(pass.prefix_backward_bytes, 900);
}

}  // namespace
}  // namespace stemma::worker
