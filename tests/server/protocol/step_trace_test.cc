// What a worker's spans may hold, and how many of them an answer can carry. Scenarios in scenarios/traces.txt show when
// they are asked for and heard.
#include "server/protocol/step_trace.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/message_sizes.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace stemma::server {
namespace {

using testing::Invalid;
using testing::IsOk;

v1::SpanList List(const std::string& text) {
  v1::SpanList list;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &list)) << text;
  return list;
}

TEST(StepTraceTest, SpansInOrderWithinTheirRangesPass) {
  for (
      const char* text :
      {"", "agreed_ns: 9007199254740992 dropped: 18446744073709551615",
       R"(spans { kind: PREPARE start_ns: 0 duration_ns: 9007199254740992 } spans { kind: COPY_WAIT start_ns: 0 })",
       R"(spans { kind: COLLECTIVE duration_ns: 5 held_ns: 5 collective: "reduce-scatter" name: "split.k" peer: 7 })"}) {
    EXPECT_THAT(CheckSpans("x", List(text)), IsOk()) << text;
  }
}

TEST(StepTraceTest, ASpanOutsideItsRangesIsRefusedByItsField) {
  const std::string name(65, 'a');
  const std::pair<std::string, const char*> cases[] = {
      {"spans { }", "x.spans[0].kind"},
      {"spans { kind: 23 }", "x.spans[0].kind"},
      {"spans { kind: APPLY start_ns: 9007199254740993 }", "x.spans[0].start_ns"},
      {"spans { kind: APPLY } spans { kind: APPLY duration_ns: 9007199254740993 }", "x.spans[1].duration_ns"},
      {"spans { kind: COLLECTIVE duration_ns: 4 held_ns: 5 }", "x.spans[0].held_ns"},
      {"spans { kind: COPY_IN bytes: 1152921504606846977 }", "x.spans[0].bytes"},
      {"spans { kind: COLLECTIVE collective: 'a b' }", "x.spans[0].collective"},
      {absl::StrCat("spans { kind: COLLECTIVE name: '", name, "' }"), "x.spans[0].name"},
      {"spans { kind: APPLY start_ns: 2 } spans { kind: APPLY start_ns: 1 }", "x.spans[1] begins before"},
      {"agreed_ns: 9007199254740993", "x.agreed_ns"}};
  for (const auto& [text, field] : cases) EXPECT_THAT(CheckSpans("x", List(text)), Invalid(field)) << text;
}

TEST(StepTraceTest, MoreSpansThanARankMayRecordAreRefused) {
  v1::SpanList list;
  for (uint32_t i = 0; i < kRankTraceSpansMax; ++i) list.add_spans()->set_kind(v1::StepSpan::ADAMW);
  EXPECT_THAT(CheckSpans("x", list), IsOk());
  list.add_spans()->set_kind(v1::StepSpan::ADAMW);
  EXPECT_THAT(CheckSpans("x", list), Invalid("x.spans has 16385"));
}

TEST(StepTraceTest, TheSpansOfAllRanksTogetherFitAnAnswer) {
  EXPECT_EQ(TraceSpansMax(1), kRankTraceSpansMax);
  for (const uint32_t ranks : {2u, 4u, 5u, 64u, 1000u, 65536u}) {
    EXPECT_GE(TraceSpansMax(ranks), 1u);
    EXPECT_LE(uint64_t{ranks} * TraceSpansMax(ranks), kTraceSpansMax) << ranks;
  }
  EXPECT_EQ(TraceSpansMax(1 << 20), 1u);
}

// The largest span that CheckSpans lets through, with its tag and length.
TEST(StepTraceTest, ASpanHasNoMoreBytesThanTheLimitsCountOn) {
  v1::SpanList list;
  v1::StepSpan& span = *list.add_spans();
  span.set_kind(v1::StepSpan::COPY_WAIT);
  span.set_start_ns(uint64_t{1} << 53);
  span.set_duration_ns(uint64_t{1} << 53);
  span.set_held_ns(uint64_t{1} << 53);
  span.set_bytes(uint64_t{1} << 60);
  span.set_cluster(~0u);
  span.set_wave(~0u);
  span.set_peer(~0u);
  span.set_entry(true);
  span.set_collective(std::string(kSpanNameBytesMax, 'a'));
  span.set_name(std::string(kSpanNameBytesMax, 'a'));
  EXPECT_THAT(CheckSpans("x", list), IsOk());
  EXPECT_LE(list.ByteSizeLong(), kSpanBytesMax);
}

TEST(StepTraceTest, OnlyTheStepThatIsNamedIsTraced) {
  v1::UpdateHeader header;
  EXPECT_FALSE(IsTraced(header, 0)) << "nobody asked";
  header.set_trace_step(0);
  EXPECT_TRUE(IsTraced(header, 0));
  EXPECT_FALSE(IsTraced(header, 1));
}

}  // namespace
}  // namespace stemma::server
