// Traces: events in, actions out, as text. What an executor may not do ends the process.
#include "worker/memory/residency/residency.h"

#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace stemma::worker {
namespace {

std::string Text(const Actions& actions) {
  static constexpr const char* kNames[] = {"out", "cancel", "free-device", "in", "free-host", "wait"};
  std::string text;
  for (const Action& action : actions) {
    text += (text.empty() ? "" : ", ") + std::string(kNames[static_cast<int>(action.kind)]) + " " +
            std::to_string(action.entry);
  }
  return text;
}

// Frees at once what is ordered, as a right executor does.
const Actions& Confirmed(Residency& residency, const Actions& actions) {
  for (const Action& action : actions) {
    if (action.kind == ActionKind::kFreeDevice) residency.DeviceFreed(action.entry);
    if (action.kind == ActionKind::kFreeHost) residency.HostFreed(action.entry);
  }
  return actions;
}

// "produced 3 100", "out-done 3", "refused 3", "in-done 3", "end", "soon", "need 3", "consumed 3"
Actions Handle(Residency& residency, const std::string& event) {
  std::istringstream words(event);
  std::string name;
  int64_t entry = 0, bytes = 0;
  words >> name >> entry >> bytes;
  if (name == "produced") return residency.Produced(entry, bytes);
  if (name == "out-done") return residency.CopyOutDone(entry);
  if (name == "refused") return residency.CopyOutRefused(entry);
  if (name == "in-done") return residency.CopyInDone(entry);
  if (name == "soon") return residency.ConsumeSoon();
  if (name == "need") return residency.Need(entry);
  if (name == "consumed") return residency.Consumed(entry);
  EXPECT_EQ(name, "end");
  residency.ProducingEnded();
  return {};
}

std::string Text(const ResidencyStats& s) {
  std::ostringstream text;
  text << "out " << s.bytes_out << " in " << s.bytes_in << " demand " << s.demand_loads << " waits " << s.waits
       << " kept " << s.kept_bytes << " device " << s.device_bytes << "/" << s.peak_device_bytes << " host "
       << s.host_bytes << "/" << s.peak_host_bytes;
  return text.str();
}

struct Trace {
  std::string name;
  ResidencyOptions options;
  std::vector<std::pair<std::string, std::string>> events;  // event, actions
  std::string stats;
};

void PrintTo(const Trace& trace, std::ostream* out) { *out << trace.name; }

class ResidencyTraceTest : public ::testing::TestWithParam<Trace> {};

TEST_P(ResidencyTraceTest, EveryEventIsAnsweredByTheseActions) {
  Residency residency(GetParam().options);
  for (const auto& [event, actions] : GetParam().events) {
    EXPECT_EQ(Text(Confirmed(residency, Handle(residency, event))), actions) << "on " << event;
  }
  EXPECT_EQ(Text(residency.stats()), GetParam().stats);
}

// {host, headroom}
const Trace kTraces[] = {
    {"all_leave_and_are_prefetched_in_time",
     {1000, 300},
     {{"produced 0 100", "out 0"},
      {"produced 1 100", "out 1"},
      {"produced 2 100", ""},  // two are in flight
      {"out-done 0", "free-device 0, out 2"},
      {"end", ""},
      {"out-done 1", "free-device 1"},  // draining goes on in Phase B
      {"out-done 2", "free-device 2"},
      {"soon", "in 2, in 1, in 0"},
      {"in-done 2", "free-host 2"},
      {"in-done 1", "free-host 1"},
      {"in-done 0", "free-host 0"},
      {"need 2", ""},
      {"consumed 2", ""},
      {"need 1", ""},
      {"consumed 1", ""},
      {"need 0", ""},
      {"consumed 0", ""}},
     "out 300 in 300 demand 0 waits 0 kept 0 device 0/300 host 0/300"},
    {"headroom_holds_the_prefetch_back_until_something_is_consumed",
     {1000, 150},
     {{"produced 0 100", "out 0"},
      {"produced 1 60", "out 1"},
      {"produced 2 80", ""},
      {"out-done 1", "free-device 1, out 2"},
      {"out-done 0", "free-device 0"},
      {"out-done 2", "free-device 2"},
      {"end", ""},
      {"soon", "in 2, in 1"},
      {"in-done 2", "free-host 2"},
      {"need 2", ""},
      {"consumed 2", ""},  // 60 + 100 do not fit
      {"need 1", "wait 1"},
      {"in-done 1", "free-host 1"},
      {"consumed 1", "in 0"},
      {"in-done 0", "free-host 0"},
      {"need 0", ""},
      {"consumed 0", ""}},
     "out 240 in 240 demand 0 waits 1 kept 0 device 0/240 host 0/240"},
    {"a_smaller_entry_does_not_overtake_in_the_prefetch",
     {1000, 100},
     {{"produced 0 50", "out 0"},
      {"produced 1 200", "out 1"},
      {"out-done 0", "free-device 0"},
      {"out-done 1", "free-device 1"},
      {"end", ""},
      {"soon", ""},
      {"need 1", "in 1, wait 1"},
      {"in-done 1", "free-host 1"},
      {"consumed 1", "in 0"},
      {"need 0", "wait 0"},
      {"in-done 0", "free-host 0"},
      {"consumed 0", ""}},
     "out 250 in 250 demand 1 waits 1 kept 0 device 0/250 host 0/250"},
    {"without_headroom_every_load_is_on_demand",
     {1000, 0},
     {{"produced 0 100", "out 0"},
      {"produced 1 100", "out 1"},
      {"out-done 0", "free-device 0"},
      {"out-done 1", "free-device 1"},
      {"end", ""},
      {"soon", ""},
      {"need 1", "in 1, wait 1"},
      {"in-done 1", "free-host 1"},
      {"consumed 1", ""},
      {"need 0", "in 0, wait 0"},
      {"in-done 0", "free-host 0"},
      {"consumed 0", ""}},
     "out 200 in 200 demand 2 waits 0 kept 0 device 0/200 host 0/200"},
    {"what_is_needed_while_it_leaves_stays",
     {1000, 0},
     {{"produced 0 100", "out 0"},
      {"produced 1 100", "out 1"},
      {"produced 2 100", ""},
      {"end", ""},
      {"need 1", "cancel 1, free-host 1, out 2"},
      {"consumed 1", ""},
      {"out-done 0", "free-device 0"},
      {"out-done 2", "free-device 2"},
      {"need 2", "in 2, wait 2"},
      {"in-done 2", "free-host 2"},
      {"consumed 2", ""}},
     "out 200 in 100 demand 1 waits 0 kept 0 device 0/300 host 100/200"},
    {"what_is_needed_before_it_begins_to_leave_never_leaves",
     {1000, 0},
     {{"produced 0 100", "out 0"},
      {"produced 1 100", "out 1"},
      {"produced 2 100", ""},
      {"need 2", ""},
      {"out-done 0", "free-device 0"},
      {"consumed 2", ""}},
     "out 100 in 0 demand 0 waits 0 kept 0 device 100/300 host 200/200"},
    {"an_entry_for_which_the_arena_is_too_small_is_kept_and_a_smaller_one_leaves",
     {150, 0},
     {{"produced 0 100", "out 0"},
      {"produced 1 100", ""},
      {"produced 2 50", "out 2"},
      {"out-done 0", "free-device 0"},
      {"out-done 2", "free-device 2"},
      {"end", ""},
      {"soon", ""},
      {"need 2", "in 2, wait 2"},
      {"in-done 2", "free-host 2"},
      {"consumed 2", ""},
      {"need 1", ""},
      {"consumed 1", ""}},
     "out 150 in 50 demand 1 waits 0 kept 100 device 0/250 host 100/150"},
    {"an_entry_that_the_arena_refuses_is_kept",
     {1000, 0},
     {{"produced 0 100", "out 0"},
      {"produced 1 100", "out 1"},
      {"produced 2 100", ""},
      {"refused 0", "out 2"},
      {"out-done 1", "free-device 1"},
      {"out-done 2", "free-device 2"}},
     "out 200 in 0 demand 0 waits 0 kept 100 device 100/300 host 200/200"},
    {"when_the_end_is_near_only_what_exceeds_the_headroom_still_leaves",
     {1000, 200},
     {{"produced 0 100", "out 0"},
      {"produced 1 100", "out 1"},
      {"produced 2 100", ""},
      {"produced 3 100", ""},
      {"produced 4 100", ""},
      {"end", ""},
      {"soon", ""},
      {"out-done 0", "free-device 0, out 2"},
      {"out-done 1", "free-device 1"},  // 3 and 4 fit the headroom
      {"out-done 2", "free-device 2"},
      {"need 4", ""},
      {"consumed 4", "in 2"},
      {"need 3", ""},
      {"consumed 3", "in 1"}},
     "out 300 in 0 demand 0 waits 0 kept 0 device 200/500 host 300/300"},
    {"when_the_end_is_near_what_fits_the_headroom_stays_though_its_copy_ended",
     {1000, 200},
     {{"produced 0 100", "out 0"},
      {"produced 1 100", "out 1"},
      {"end", ""},
      {"soon", ""},
      {"out-done 0", "free-host 0"},
      {"need 1", "cancel 1, free-host 1"},
      {"consumed 1", ""},
      {"need 0", ""},
      {"consumed 0", ""}},
     "out 100 in 0 demand 0 waits 0 kept 0 device 0/200 host 0/200"},
    {"an_empty_entry_never_leaves",
     {1000, 0},
     {{"produced 0 0", ""}, {"end", ""}, {"soon", ""}, {"need 0", ""}, {"consumed 0", ""}},
     "out 0 in 0 demand 0 waits 0 kept 0 device 0/0 host 0/0"},
};

INSTANTIATE_TEST_SUITE_P(Policy, ResidencyTraceTest, ::testing::ValuesIn(kTraces),
                         [](const auto& test) { return test.param.name; });

// Wrong executors.
class ResidencyDeathTest : public ::testing::Test {
 protected:
  // Frees are not confirmed unless an event says so.
  void Play(const std::vector<std::string>& events) {
    for (const std::string& event : events) Confirmed(residency_, Handle(residency_, event));
  }
  Residency residency_{{.host_bytes = 150, .headroom_bytes = 100}};
};

TEST_F(ResidencyDeathTest, AnEntryThatIsReadBeforeItsCopyInEndedIsSeen) {
  Play({"produced 0 100", "out-done 0", "need 0"});
  EXPECT_DEATH(Play({"consumed 0"}), "entry 0 is read while it is arriving");
}

TEST_F(ResidencyDeathTest, AnEntryThatIsReadWhileAwayIsSeen) {
  Play({"produced 0 100", "out-done 0"});
  EXPECT_DEATH(Play({"consumed 0"}), "entry 0 is read while it is in host memory");
}

TEST_F(ResidencyDeathTest, DeviceMemoryThatIsFreedBeforeItsCopyOutEndedIsSeen) {
  Play({"produced 0 100"});
  EXPECT_DEATH(residency_.DeviceFreed(0), "device memory of entry 0 is freed while it is leaving");
}

TEST_F(ResidencyDeathTest, HostMemoryThatIsFreedBeforeItsCopyInEndedIsSeen) {
  Play({"produced 0 100", "out-done 0", "need 0"});
  EXPECT_DEATH(residency_.HostFreed(0), "host memory of entry 0 is freed while it is arriving");
}

TEST_F(ResidencyDeathTest, MemoryThatIsFreedTwiceIsSeen) {
  Play({"produced 0 100", "out-done 0"});
  EXPECT_DEATH(residency_.DeviceFreed(0), "is freed while");
}

TEST_F(ResidencyDeathTest, AFreeThatIsNotDoneIsSeen) {
  Play({"produced 0 100"});
  residency_.CopyOutDone(0);
  EXPECT_DEATH(residency_.Need(0), "ordered and not done");
}

TEST_F(ResidencyDeathTest, AnEntryIsReadOnceAndOnlyAfterItIsNeeded) {
  Play({"produced 0 0", "produced 1 0"});
  EXPECT_DEATH(Play({"consumed 0"}), "nobody said that it is needed");
  Play({"need 0", "consumed 0"});
  EXPECT_DEATH(Play({"consumed 0"}), "entry 0 is read while it is consumed");
  EXPECT_DEATH(Play({"need 0"}), "needed twice");
}

TEST_F(ResidencyDeathTest, ACopyThatEndsTwiceOrNeverBeganIsSeen) {
  Play({"produced 0 100", "produced 1 100"});  // the arena has no room for the second
  EXPECT_DEATH(Play({"out-done 1"}), "ended, which is on the device");
  EXPECT_DEATH(Play({"in-done 0"}), "ended, which is leaving");
  Play({"need 0"});  // cancels
  EXPECT_DEATH(Play({"out-done 0"}), "ended, which is on the device");
}

TEST_F(ResidencyDeathTest, EntriesAreProducedOnceAndBeforeTheEnd) {
  Play({"produced 0 100"});
  EXPECT_DEATH(Play({"produced 0 100"}), "produced twice");
  EXPECT_DEATH(Play({"need 7"}), "entry 7 was never produced");
  EXPECT_DEATH(Play({"soon"}), "while entries are produced");
  EXPECT_DEATH(Play({"end", "produced 1 100"}), "after the end of producing");
}

}  // namespace
}  // namespace stemma::worker
