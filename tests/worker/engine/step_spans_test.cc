// What a rank records of a step: bounded, on its own clock, by the start.
#include "worker/engine/step_spans.h"

#include <string>

#include "gtest/gtest.h"
#include "tests/testing/thread_communicator.h"

namespace stemma::worker {
namespace {

using testing::MakeThreadRanks;

using v1::StepSpan;

constexpr double kOrigin = 1000;

TEST(StepSpansTest, TimesCountFromTheOriginAndNeighboursStayNeighbours) {
  StepSpans spans(kOrigin, 9);
  // Rounding durations instead of ends would open gaps, or overlap: a third of a nanosecond is none.
  double end_s = kOrigin;
  for (int i = 1; i <= 3; ++i) {
    const double begin_s = end_s;
    end_s = kOrigin + i * 1.4e-6;
    spans.Add(StepSpan::WAVE_FORWARD, begin_s, end_s);
  }
  const v1::SpanList list = spans.Take();
  ASSERT_EQ(list.spans_size(), 3);
  uint64_t last_end_ns = 0;
  for (int i = 0; i < 3; ++i) {
    const uint64_t end_ns = list.spans(i).start_ns() + list.spans(i).duration_ns();
    EXPECT_EQ(end_ns, static_cast<uint64_t>(1400 * (i + 1)));
    EXPECT_EQ(list.spans(i).start_ns(), last_end_ns);
    last_end_ns = end_ns;
  }
  EXPECT_EQ(list.dropped(), 0u);
  EXPECT_EQ(list.agreed_ns(), 0u) << "nobody agreed";
}

TEST(StepSpansTest, WhatComesAfterTheLimitIsCountedAlsoAfterATake) {
  StepSpans spans(kOrigin, 3);
  for (int i = 0; i < 2; ++i) spans.Add(StepSpan::PREFIX_FORWARD, kOrigin, kOrigin + 1);
  EXPECT_EQ(spans.Take().spans_size(), 2);
  for (int i = 0; i < 5; ++i) spans.Add(StepSpan::ADAMW, kOrigin, kOrigin + 1);
  const v1::SpanList after = spans.Take();
  EXPECT_EQ(after.spans_size(), 1) << "the limit holds for the whole step";
  EXPECT_EQ(after.dropped(), 4u);
  EXPECT_EQ(spans.Take().dropped(), 0u) << "told already";
}

TEST(StepSpansTest, SpansComeByTheirStart) {
  StepSpans spans(kOrigin, 9);
  spans.Add(StepSpan::ADAMW, kOrigin + 2, kOrigin + 3);
  spans.Add(StepSpan::PREPARE, kOrigin, kOrigin + 4);
  spans.AddAgreement(kOrigin + 1, kOrigin + 2.5);
  const v1::SpanList list = spans.Take();
  EXPECT_EQ(list.spans(0).kind(), StepSpan::PREPARE);
  EXPECT_EQ(list.spans(1).kind(), StepSpan::AGREE);
  EXPECT_EQ(list.spans(2).kind(), StepSpan::ADAMW);
  EXPECT_EQ(list.agreed_ns(), 2'500'000'000u);
}

TEST(StepSpansTest, ACollectiveSaysWhatItMovedAndHowLongItHeldTheEngine) {
  StepSpans spans(kOrigin, 9);
  spans.Add(CollectiveRecord{.kind = CollectiveKind::kReduceScatterSum,
                             .axis = "data.1.0",
                             .name = "gradients",
                             .bytes = 77,
                             .started_s = kOrigin + 1,
                             .awaited_s = kOrigin + 3,
                             .ended_s = kOrigin + 3.5});
  spans.Add(CollectiveRecord{
      .kind = CollectiveKind::kSend, .axis = "data.1.0", .name = "split.k", .peer = 0, .started_s = kOrigin + 2});
  const v1::SpanList list = spans.Take();
  const StepSpan& scatter = list.spans(0);
  EXPECT_EQ(scatter.kind(), StepSpan::COLLECTIVE);
  EXPECT_EQ(scatter.collective(), "reduce-scatter");
  EXPECT_EQ(scatter.name(), "gradients");
  EXPECT_EQ(scatter.axis(), "data.1.0");
  EXPECT_EQ(scatter.bytes(), 77u);
  EXPECT_EQ(scatter.start_ns(), 1'000'000'000u);
  EXPECT_EQ(scatter.duration_ns(), 2'500'000'000u);
  EXPECT_EQ(scatter.held_ns(), 500'000'000u);
  EXPECT_FALSE(scatter.has_peer());
  EXPECT_TRUE(list.spans(1).has_peer()) << "rank 0 is a peer";
}

// An operation names the other copy of the model; a span the rank that holds there what this one holds here.
TEST(StepSpansTest, APeerIsToldByItsRankInTheMesh) {
  const Operation send = {.kind = OperationKind::kSend, .part = PrefixPart::kKv, .peer_copy = 2};
  auto tp = MakeThreadRanks(3, absl::Minutes(1), "tp.0"), pp = MakeThreadRanks(4, absl::Minutes(1), "pp.0"),
       cp = MakeThreadRanks(2, absl::Minutes(1), "cp.0");
  EXPECT_EQ(SpanOf(send, /*entry=*/false).peer(), 2u);
  EXPECT_EQ(SpanOf(send, /*entry=*/false, 0, {.tp = tp[1].get()}).peer(), 7u);
  EXPECT_EQ(SpanOf(send, /*entry=*/false, 0, {.tp = tp[1].get(), .cp = cp[1].get(), .pp = pp[3].get()}).peer(),
            ((2u * 4 + 3) * 2 + 1) * 3 + 1);
}

TEST(StepSpansTest, CopiesKeepTheirDirection) {
  StepSpans spans(kOrigin, 9);
  spans.Add(CopyTimes{CopyTimes::Kind::kOut, 0, 5, kOrigin, kOrigin + 1});
  spans.Add(CopyTimes{CopyTimes::Kind::kIn, 1, 6, kOrigin + 1, kOrigin + 2});
  spans.Add(CopyTimes{CopyTimes::Kind::kWait, 1, 0, kOrigin + 2, kOrigin + 3});
  const v1::SpanList list = spans.Take();
  EXPECT_EQ(list.spans(0).kind(), StepSpan::COPY_OUT);
  EXPECT_EQ(list.spans(0).bytes(), 5u);
  EXPECT_EQ(list.spans(1).kind(), StepSpan::COPY_IN);
  EXPECT_EQ(list.spans(2).kind(), StepSpan::COPY_WAIT);
}

TEST(StepSpansTest, AnOperationNamesClusterWaveAndPeer) {
  const StepSpan wave = SpanOf({.kind = OperationKind::kWaveBackward, .cluster = 3, .wave = 4}, /*entry=*/false);
  EXPECT_EQ(wave.kind(), StepSpan::WAVE_BACKWARD);
  EXPECT_EQ(wave.cluster(), 3u);
  EXPECT_EQ(wave.wave(), 4u);
  EXPECT_FALSE(wave.has_peer());
  EXPECT_FALSE(wave.entry());
  EXPECT_EQ(wave.held_ns(), 0u);
  EXPECT_EQ(SpanOf({.kind = OperationKind::kPrefixBackward}, false, /*held_s=*/0.25).held_ns(), 250'000'000u);

  Operation exchange{.kind = OperationKind::kReceive, .cluster = 2};
  exchange.peer_copy = 1;
  exchange.part = PrefixPart::kKv;
  EXPECT_EQ(SpanOf(exchange, true).kind(), StepSpan::RECEIVE_KV);
  EXPECT_EQ(SpanOf(exchange, true).peer(), 1u) << "who sends";
  EXPECT_TRUE(SpanOf(exchange, true).entry());
  exchange.part = PrefixPart::kGradients;
  EXPECT_EQ(SpanOf(exchange, false).kind(), StepSpan::RECEIVE_GRADIENTS);
  exchange.kind = OperationKind::kSend;
  exchange.peer_copy = 0;
  EXPECT_EQ(SpanOf(exchange, false).kind(), StepSpan::SEND_GRADIENTS);
  EXPECT_EQ(SpanOf(exchange, false).peer(), 0u) << "who receives";
  exchange.part = PrefixPart::kKv;
  EXPECT_EQ(SpanOf(exchange, false).kind(), StepSpan::SEND_KV);
  EXPECT_EQ(SpanOf({.kind = OperationKind::kPrefixForward}, false).kind(), StepSpan::PREFIX_FORWARD);
  EXPECT_EQ(SpanOf({.kind = OperationKind::kWaveForward}, false).kind(), StepSpan::WAVE_FORWARD);
  EXPECT_EQ(SpanOf({.kind = OperationKind::kPrefixBackward}, false).kind(), StepSpan::PREFIX_BACKWARD);
}

TEST(StepSpansTest, ATimedSpanAddsOneAndNothingWhereNothingIsRecorded) {
  StepSpans spans(0, 9);
  { const TimedSpan timed(&spans, StepSpan::GRADIENT_NORM); }
  { const TimedSpan timed(nullptr, StepSpan::GRADIENT_NORM); }
  const v1::SpanList list = spans.Take();
  ASSERT_EQ(list.spans_size(), 1);
  EXPECT_EQ(list.spans(0).kind(), StepSpan::GRADIENT_NORM);
}

}  // namespace
}  // namespace stemma::worker
