// What of an operation's wires runs beside its compute.
#include "server/simulation/operation_seconds.h"

#include <gtest/gtest.h>

#include "tests/testing/namespaces.h"

namespace stemma::testing {
namespace {

TEST(OperationSecondsTest, EveryUnitOfWorkIsCountedOnce) {
  Work work;
  Rates rates;
  for (int i = 0; i < server::kNumRates; ++i) {
    work[static_cast<Rate>(i)] = 1 << i;
    rates[static_cast<Rate>(i)] = 1 + i;
  }
  const OperationSeconds seconds = SecondsOf(work, rates);
  double wires = 0;
  for (const double wire_s : seconds.wire_s) wires += wire_s;
  EXPECT_EQ(seconds.compute_s + seconds.copy_s + wires, Seconds(work, rates));
  EXPECT_EQ(seconds.copy_s, work[kCopy] * rates[kCopy]);
  EXPECT_EQ(seconds.wire_s[kContextAt],
            work[kContextByte] * rates[kContextByte] + work[kContextCollective] * rates[kContextCollective]);
  EXPECT_EQ(seconds.sent_bytes[kTensorAt], work[kTensorByte]);
  EXPECT_EQ(seconds.message_s, seconds.wire_s[kStageAt]);
  EXPECT_EQ(seconds.Exposed()[kStageAt], 0) << "a sender goes on";
  EXPECT_EQ(seconds.Exposed()[kTensorAt], seconds.wire_s[kTensorAt]);
}

// The first of four layers waits for its wire; that of each other one runs beside a layer of 2 s.
TEST(OperationSecondsTest, ALayersWireRunsBesideItsNeighboursCompute) {
  OperationSeconds seconds = {.compute_s = 4};
  seconds.wire_s[kTensorAt] = 4;
  seconds.wire_s[kContextAt] = 4;
  HideBesideLayers(Axis::kContext, /*share=*/1, /*layers=*/4, seconds);
  EXPECT_EQ(seconds.hidden_s[kContextAt], 3);
  EXPECT_EQ(seconds.Exposed()[kContextAt], 1);
  seconds.hidden_s = {};
  seconds.wire_s[kContextAt] = 12;
  HideBesideLayers(Axis::kContext, /*share=*/1, /*layers=*/4, seconds);
  EXPECT_EQ(seconds.hidden_s[kContextAt], 6);
  seconds.hidden_s = {};
  HideBesideLayers(Axis::kContext, /*share=*/0.25, /*layers=*/4, seconds);
  EXPECT_EQ(seconds.hidden_s[kContextAt], 0.75 * 3) << "the rest is waited for";
  seconds.hidden_s = {};
  HideBesideLayers(Axis::kContext, /*share=*/1, /*layers=*/1, seconds);
  EXPECT_EQ(seconds.hidden_s[kContextAt], 0) << "one layer has no neighbour";
}

}  // namespace
}  // namespace stemma::testing
