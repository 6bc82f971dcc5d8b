// A step's trace as Chrome's events: ranks on one clock, lanes in which nothing overlaps, who waited for whom.
#include "client/cli/output/step_trace_json.h"

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/json.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"

namespace stemma::cli {
namespace {

const StepTraceLabels kLabels = {"stemma 1.2", "run/3", 7};

v1::StepTrace Trace(const std::string& text) {
  v1::StepTrace trace;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &trace)) << text;
  return trace;
}

nlohmann::json Parsed(const v1::StepTrace& trace) {
  const absl::StatusOr<nlohmann::json> json = ParseJson(StepTraceJson(trace, kLabels));
  EXPECT_TRUE(json.ok()) << json.status();
  return json.ok() ? *json : nlohmann::json();
}

std::vector<nlohmann::json> Spans(const nlohmann::json& trace) {
  std::vector<nlohmann::json> spans;
  for (const nlohmann::json& event : trace.at("traceEvents")) {
    if (event.at("ph") == "X") spans.push_back(event);
  }
  return spans;
}

// Rank 1 began its PREPARE 2 us before rank 0, and rank 0 came last to the collective "gradients".
constexpr char kTwoRanks[] = R"(
  ranks { rank: 0 host: "h" device: "cpu:0" spans {
    agreed_ns: 4000
    spans { kind: PREPARE duration_ns: 5500 }
    spans { kind: WAVE_BACKWARD duration_ns: 1250 cluster: 1 wave: 2 }
    spans { kind: COLLECTIVE start_ns: 2000 duration_ns: 1500 held_ns: 1400 bytes: 64 collective: "reduce-scatter" name: "gradients" }
    spans { kind: AGREE start_ns: 3500 duration_ns: 500 }
  } }
  ranks { rank: 1 host: "h" device: "cpu:1" spans {
    agreed_ns: 6000 dropped: 0
    spans { kind: PREPARE duration_ns: 7000 }
    spans { kind: COLLECTIVE start_ns: 1000 duration_ns: 4500 held_ns: 4000 bytes: 64 collective: "reduce-scatter" name: "gradients" }
    spans { kind: AGREE start_ns: 5200 duration_ns: 800 }
  } })";

constexpr char kTwoRanksText[] = R"json({"displayTimeUnit": "ms",
 "otherData": {"program":"stemma 1.2","request_id":"run/3","step":7,"ranks":2,"spans_dropped":[0,0],"clock_error_us":0.5},
 "traceEvents": [
{"ph":"M","name":"process_name","pid":0,"tid":0,"args":{"name":"rank 0 (h, cpu:0)"}},
{"ph":"M","name":"process_sort_index","pid":0,"tid":0,"args":{"sort_index":0}},
{"ph":"M","name":"thread_name","pid":0,"tid":1,"args":{"name":"step"}},
{"ph":"M","name":"thread_sort_index","pid":0,"tid":1,"args":{"sort_index":1}},
{"ph":"M","name":"thread_name","pid":0,"tid":1001,"args":{"name":"compute"}},
{"ph":"M","name":"thread_sort_index","pid":0,"tid":1001,"args":{"sort_index":1001}},
{"ph":"M","name":"thread_name","pid":0,"tid":2001,"args":{"name":"waits"}},
{"ph":"M","name":"thread_sort_index","pid":0,"tid":2001,"args":{"sort_index":2001}},
{"ph":"M","name":"thread_name","pid":0,"tid":3001,"args":{"name":"collectives"}},
{"ph":"M","name":"thread_sort_index","pid":0,"tid":3001,"args":{"sort_index":3001}},
{"ph":"X","name":"PREPARE","cat":"step","pid":0,"tid":1,"ts":2.0,"dur":5.5},
{"ph":"X","name":"B: wave backward","cat":"phase","pid":0,"tid":1001,"ts":2.0,"dur":1.25,"args":{"cluster":1,"wave":2}},
{"ph":"X","name":"reduce-scatter gradients","cat":"collective","pid":0,"tid":3001,"ts":4.0,"dur":1.5,"args":{"bytes":64,"last_rank":0,"waiting_us":0.0,"moving_us":1.5}},
{"ph":"X","name":"transfer gradients","cat":"transfer","pid":0,"tid":2001,"ts":4.1,"dur":1.4,"args":{"bytes":64}},
{"ph":"X","name":"agree","cat":"gradients","pid":0,"tid":1001,"ts":5.5,"dur":0.5},
{"ph":"M","name":"process_name","pid":1,"tid":0,"args":{"name":"rank 1 (h, cpu:1)"}},
{"ph":"M","name":"process_sort_index","pid":1,"tid":0,"args":{"sort_index":1}},
{"ph":"M","name":"thread_name","pid":1,"tid":1,"args":{"name":"step"}},
{"ph":"M","name":"thread_sort_index","pid":1,"tid":1,"args":{"sort_index":1}},
{"ph":"M","name":"thread_name","pid":1,"tid":1001,"args":{"name":"compute"}},
{"ph":"M","name":"thread_sort_index","pid":1,"tid":1001,"args":{"sort_index":1001}},
{"ph":"M","name":"thread_name","pid":1,"tid":2001,"args":{"name":"waits"}},
{"ph":"M","name":"thread_sort_index","pid":1,"tid":2001,"args":{"sort_index":2001}},
{"ph":"M","name":"thread_name","pid":1,"tid":3001,"args":{"name":"collectives"}},
{"ph":"M","name":"thread_sort_index","pid":1,"tid":3001,"args":{"sort_index":3001}},
{"ph":"X","name":"PREPARE","cat":"step","pid":1,"tid":1,"ts":0.0,"dur":7.0},
{"ph":"X","name":"reduce-scatter gradients","cat":"collective","pid":1,"tid":3001,"ts":1.0,"dur":4.5,"args":{"bytes":64,"last_rank":0,"waiting_us":3.0,"moving_us":1.5}},
{"ph":"X","name":"wait for rank 0","cat":"wait","pid":1,"tid":2001,"ts":1.5,"dur":2.5,"args":{"collective":"gradients"}},
{"ph":"X","name":"transfer gradients","cat":"transfer","pid":1,"tid":2001,"ts":4.0,"dur":1.5,"args":{"bytes":64}},
{"ph":"X","name":"agree","cat":"gradients","pid":1,"tid":1001,"ts":5.2,"dur":0.8}
]}
)json";

TEST(StepTraceJsonTest, TwoRanksAreThisText) { EXPECT_EQ(StepTraceJson(Trace(kTwoRanks), kLabels), kTwoRanksText); }

TEST(StepTraceJsonTest, WhatOverlapsInALaneHasThreadsOfItsOwn) {
  const nlohmann::json json = Parsed(Trace(R"(ranks { spans {
    spans { kind: COLLECTIVE start_ns: 0 duration_ns: 10 name: "a" }
    spans { kind: COLLECTIVE start_ns: 5 duration_ns: 10 name: "b" }
    spans { kind: COLLECTIVE start_ns: 10 duration_ns: 2 name: "c" }
    spans { kind: COLLECTIVE start_ns: 11 duration_ns: 2 name: "d" }
    spans { kind: COPY_OUT start_ns: 20 duration_ns: 4 bytes: 8 }
    spans { kind: COPY_IN start_ns: 22 duration_ns: 4 bytes: 8 }
  } })"));
  std::map<std::string, int> lanes;
  for (const nlohmann::json& span : Spans(json)) lanes[span.at("name")] = span.at("tid");
  EXPECT_EQ(lanes, (std::map<std::string, int>{
                       {" a", 3001}, {" b", 3002}, {" c", 3001}, {" d", 3003}, {"copy out", 4001}, {"copy in", 4002}}));
  std::set<std::string> names;
  for (const nlohmann::json& event : json.at("traceEvents")) {
    if (event.at("name") == "thread_name") names.insert(event.at("args").at("name"));
  }
  EXPECT_EQ(names, (std::set<std::string>{"collectives", "collectives 2", "collectives 3", "copies", "copies 2"}));
}

TEST(StepTraceJsonTest, OneRankBeginsAt0AndStatesNoClockError) {
  const nlohmann::json json = Parsed(Trace(R"(ranks { host: "h" device: "cpu:0" spans {
    spans { kind: PREPARE duration_ns: 9007199254740992 } spans { kind: COPY_WAIT start_ns: 3 duration_ns: 1 } } })"));
  const std::vector<nlohmann::json> spans = Spans(json);
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].at("ts"), 0);
  EXPECT_EQ(spans[1].at("tid"), 2001) << "the engine waits for a copy among the waits";
  EXPECT_FALSE(json.at("otherData").contains("clock_error_us"));
}

TEST(StepTraceJsonTest, ASendMeetsItsReceiveByTheirPairAndOrder) {
  // Rank 0 sends twice to each of the others; rank 2 takes its second one late.
  const nlohmann::json json = Parsed(Trace(R"(
    ranks { rank: 0 spans { agreed_ns: 100
      spans { kind: COLLECTIVE start_ns: 10 duration_ns: 5 held_ns: 5 collective: "send" name: "split.k" peer: 1 }
      spans { kind: COLLECTIVE start_ns: 20 duration_ns: 5 held_ns: 5 collective: "send" name: "split.k" peer: 2 }
      spans { kind: COLLECTIVE start_ns: 30 duration_ns: 5 held_ns: 5 collective: "send" name: "split.k" peer: 1 }
      spans { kind: COLLECTIVE start_ns: 40 duration_ns: 20 held_ns: 20 collective: "send" name: "split.k" peer: 2 } } }
    ranks { rank: 1 spans { agreed_ns: 100
      spans { kind: COLLECTIVE start_ns: 8 duration_ns: 7 held_ns: 7 collective: "receive" name: "split.k" peer: 0 }
      spans { kind: COLLECTIVE start_ns: 26 duration_ns: 9 held_ns: 9 collective: "receive" name: "split.k" peer: 0 } } }
    ranks { rank: 2 spans { agreed_ns: 100
      spans { kind: COLLECTIVE start_ns: 20 duration_ns: 5 held_ns: 5 collective: "receive" name: "split.k" peer: 0 }
      spans { kind: COLLECTIVE start_ns: 55 duration_ns: 5 held_ns: 5 collective: "receive" name: "split.k" peer: 0 } } })"));
  std::vector<std::pair<double, double>> sends;  // waiting, moving
  for (const nlohmann::json& span : Spans(json)) {
    if (span.at("name") != "send split.k") continue;
    sends.emplace_back(span.at("args").at("waiting_us"), span.at("args").at("moving_us"));
  }
  EXPECT_EQ(sends, (std::vector<std::pair<double, double>>{{0, 0.005}, {0, 0.005}, {0, 0.005}, {0.015, 0.005}}));
}

// Where two ranks each hold a copy, a rank is waited for by its own copy only.
TEST(StepTraceJsonTest, ACollectiveIsOfTheRanksOfItsAxis) {
  const auto rank = [](int number, int at_ns, const std::string& axis) {
    return absl::StrCat("ranks { rank: ", number, " spans { agreed_ns: 100 spans { kind: COLLECTIVE start_ns: ", at_ns,
                        " duration_ns: ", 60 - at_ns, " held_ns: ", 60 - at_ns,
                        " collective: 'all-gather' name: 'rows' axis: '", axis, "' } } }");
  };
  const nlohmann::json json =
      Parsed(Trace(rank(0, 10, "tp.0") + rank(1, 40, "tp.0") + rank(2, 20, "tp.1") + rank(3, 25, "tp.1")));
  std::vector<double> waiting_us;
  for (const nlohmann::json& span : Spans(json)) {
    if (span.at("name") == "all-gather rows") waiting_us.push_back(span.at("args").at("waiting_us"));
  }
  EXPECT_EQ(waiting_us, (std::vector<double>{0.03, 0, 0.005, 0}));
}

TEST(StepTraceJsonTest, WhereSpansAreMissingNobodyIsSaidToHaveBeenWaitedFor) {
  for (const char* spoil :
       {"ranks { rank: 1 spans { dropped: 1 spans { kind: COLLECTIVE collective: 'barrier' name: 'x' } } }",
        "ranks { rank: 1 }"}) {
    v1::StepTrace trace = Trace(R"(
        ranks { spans { spans { kind: COLLECTIVE duration_ns: 9 held_ns: 9 collective: 'barrier' name: 'x' } } })");
    trace.MergeFrom(Trace(spoil));
    const nlohmann::json json = Parsed(trace);
    const std::vector<nlohmann::json> spans = Spans(json);
    EXPECT_FALSE(spans.at(0).at("args").contains("waiting_us")) << spoil;
    EXPECT_EQ(spans.at(1).at("name"), "collective x") << spoil;
    EXPECT_EQ(json.at("otherData").at("spans_dropped").size(), 2u);
  }
}

TEST(StepTraceJsonTest, TheLastBackwardSaysWhatTheReductionTookInIt) {
  const nlohmann::json json = Parsed(Trace(R"(ranks { spans {
    spans { kind: PREFIX_BACKWARD duration_ns: 9000 held_ns: 1500 } spans { kind: PREFIX_BACKWARD duration_ns: 9 } } })"));
  EXPECT_EQ(Spans(json).at(0).at("args").at("reduction_us"), 1.5);
  EXPECT_EQ(Spans(json).at(0).at("dur"), 9);
  EXPECT_FALSE(Spans(json).at(1).at("args").contains("reduction_us"));
}

TEST(StepTraceJsonTest, ThePassBeforeAStepIsToldApart) {
  const nlohmann::json json = Parsed(Trace("ranks { spans { spans { kind: WAVE_FORWARD entry: true } } }"));
  EXPECT_EQ(Spans(json).at(0).at("name"), "entry log-probs, B: wave forward");
  EXPECT_EQ(Spans(json).at(0).at("cat"), "entry");
}

// What Perfetto would show of a kind without a name of its own, no test of a real step would notice.
TEST(StepTraceJsonTest, EveryKindHasANameOfItsOwn) {
  std::set<std::string> names;
  int kinds = 0;
  for (int kind = v1::StepSpan::Kind_MIN + 1; kind <= v1::StepSpan::Kind_MAX; ++kind) {
    v1::StepTrace trace;
    v1::StepSpan& span = *trace.add_ranks()->mutable_spans()->add_spans();
    span.set_kind(static_cast<v1::StepSpan::Kind>(kind));
    span.set_name("x");
    const nlohmann::json json = Parsed(trace);
    EXPECT_NE(Spans(json).at(0).at("cat"), "unknown") << kind;
    names.insert(Spans(json).at(0).at("name"));
    ++kinds;
  }
  EXPECT_EQ(static_cast<int>(names.size()), kinds);
}

}  // namespace
}  // namespace stemma::cli
