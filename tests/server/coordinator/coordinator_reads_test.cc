// In which order the coordinator hears calls that only ask.
#include <string>
#include <utility>
#include <vector>

#include "glog/logging.h"
#include "gtest/gtest.h"
#include "server/coordinator/coordinator.h"
#include "tests/server/coordinator/echo_worker.h"

namespace stemma::server {
namespace {

// Notes in which order calls are answered.
class Ordered final : public ClientCall {
 public:
  Ordered(std::string name, std::vector<std::string>& order) : name_(std::move(name)), order_(order) {}
  void OnChunk(std::shared_ptr<const v1::GroupResult>) override {}
  void OnReply(Reply) override { order_.push_back(name_); }  // the coordinator's thread

 private:
  const std::string name_;
  std::vector<std::string>& order_;
};

// However many clients ask, what changes something has its turn first; and who has left is not answered.
TEST(CoordinatorReadsTest, WaitForAllOtherCalls) {
  CoordinatorOptions options;
  options.lineage_prefix = "L";
  Coordinator coordinator(options, OneStepPlan, /*storage=*/nullptr, RealClock(), [](bool) {});
  std::vector<std::string> order;
  Flag all_are_here;
  coordinator.Ask([&] { CHECK(all_are_here.AwaitWithin(kPatience)); });
  const auto call = [&](const std::string& name, const std::function<Event(CallId)>& event) {
    return coordinator.Call(std::make_shared<Ordered>(name, order), event);
  };
  call("list", [](CallId id) { return ListRequestsEvent{id}; });
  const CallId gone = call("gone", [](CallId id) { return GetModelEvent{id}; });
  call("get", [](CallId id) { return GetRequestEvent{id, "nobody", std::nullopt}; });
  call("info", [](CallId id) { return GetServerInfoEvent{id}; });
  call("checkpoints", [](CallId id) { return ListCheckpointsEvent{id}; });
  call("cancel", [](CallId id) { return CancelEvent{id, "nobody"}; });
  call("delete", [](CallId id) { return DeleteExportEvent{id, "nobody"}; });
  coordinator.CallGone(gone);
  const auto last = std::make_shared<Waiting>();
  coordinator.Call(last, [](CallId id) { return GetModelEvent{id}; });
  all_are_here.Set();
  last->Get();
  coordinator.Stop();
  EXPECT_EQ(order, (std::vector<std::string>{"cancel", "delete", "list", "get", "info", "checkpoints"}));
}

}  // namespace
}  // namespace stemma::server
