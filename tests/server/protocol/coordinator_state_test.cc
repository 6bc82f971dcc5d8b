// The server's decisions as texts, in scenarios/*.txt: an event, and the actions that must follow it. scenario.h has
// the words. Each scenario is a test of its own, named by its heading.
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/server/protocol/scenario.h"

namespace stemma::server {
namespace {

struct NamedScenario {
  std::string name;
  std::string text;
};

std::vector<NamedScenario> ReadScenarios(const std::string& topic) {
  std::ifstream file(STEMMA_SCENARIOS "/" + topic + ".txt");
  std::vector<NamedScenario> scenarios;
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with("# ")) {
      scenarios.push_back({line.substr(2), "\n"});
    } else if (!line.empty()) {
      scenarios.back().text += line + "\n";
    }
  }
  return scenarios;
}

class CoordinatorStateTest : public ::testing::TestWithParam<NamedScenario> {};

TEST_P(CoordinatorStateTest, FollowsItsText) { EXPECT_EQ(RunScenario(GetParam().text), GetParam().text); }

const auto kName = [](const auto& info) { return info.param.name; };
INSTANTIATE_TEST_SUITE_P(Steps, CoordinatorStateTest, ::testing::ValuesIn(ReadScenarios("steps")), kName);
INSTANTIATE_TEST_SUITE_P(Gang, CoordinatorStateTest, ::testing::ValuesIn(ReadScenarios("gang")), kName);
INSTANTIATE_TEST_SUITE_P(Recovery, CoordinatorStateTest, ::testing::ValuesIn(ReadScenarios("recovery")), kName);
INSTANTIATE_TEST_SUITE_P(Breaches, CoordinatorStateTest, ::testing::ValuesIn(ReadScenarios("breaches")), kName);
INSTANTIATE_TEST_SUITE_P(Lineage, CoordinatorStateTest, ::testing::ValuesIn(ReadScenarios("lineage")), kName);
INSTANTIATE_TEST_SUITE_P(Arrivals, CoordinatorStateTest, ::testing::ValuesIn(ReadScenarios("arrivals")), kName);
INSTANTIATE_TEST_SUITE_P(Numbers, CoordinatorStateTest, ::testing::ValuesIn(ReadScenarios("numbers")), kName);
INSTANTIATE_TEST_SUITE_P(Stalls, CoordinatorStateTest, ::testing::ValuesIn(ReadScenarios("stalls")), kName);
INSTANTIATE_TEST_SUITE_P(Traces, CoordinatorStateTest, ::testing::ValuesIn(ReadScenarios("traces")), kName);
INSTANTIATE_TEST_SUITE_P(Calls, CoordinatorStateTest, ::testing::ValuesIn(ReadScenarios("calls")), kName);
INSTANTIATE_TEST_SUITE_P(Verifications, CoordinatorStateTest, ::testing::ValuesIn(ReadScenarios("verifications")),
                         kName);

INSTANTIATE_TEST_SUITE_P(Checkpoints, CoordinatorStateTest, ::testing::ValuesIn(ReadScenarios("checkpoints")), kName);
INSTANTIATE_TEST_SUITE_P(Disk, CoordinatorStateTest, ::testing::ValuesIn(ReadScenarios("disk")), kName);
INSTANTIATE_TEST_SUITE_P(Logs, CoordinatorStateTest, ::testing::ValuesIn(ReadScenarios("logs")), kName);
INSTANTIATE_TEST_SUITE_P(Incidents, CoordinatorStateTest, ::testing::ValuesIn(ReadScenarios("incidents")), kName);
INSTANTIATE_TEST_SUITE_P(Replays, CoordinatorStateTest, ::testing::ValuesIn(ReadScenarios("replays")), kName);

// With STEMMA_UPDATE_GOLDEN=TOPIC the topic's texts are written anew, as they really go: to be read before they are
// kept.
TEST(ScenarioTest, TextsAreWrittenAnewWhereThatIsAskedFor) {
  const char* topic = std::getenv("STEMMA_UPDATE_GOLDEN");
  if (topic == nullptr) GTEST_SKIP() << "STEMMA_UPDATE_GOLDEN names no topic";
  std::string text;
  for (const NamedScenario& scenario : ReadScenarios(topic)) {
    text += (text.empty() ? "# " : "\n# ") + scenario.name + RunScenario(scenario.text);
  }
  std::ofstream(STEMMA_SCENARIOS "/" + std::string(topic) + ".txt") << text;
}

TEST(ScenarioTest, EveryTopicHasScenarios) {
  for (const char* topic :
       {"steps", "gang", "recovery", "lineage", "breaches", "arrivals", "calls", "disk", "logs", "stalls", "replays"})
    EXPECT_GE(ReadScenarios(topic).size(), 10u) << topic;
}

TEST(ScenarioTest, AWrongExpectationIsSeen) {
  const std::string wrong = "\n> model 1\nreply 1 model IDLE step=0 version=1 lineage=L-1\n";
  EXPECT_NE(RunScenario(wrong), wrong);
}

}  // namespace
}  // namespace stemma::server
