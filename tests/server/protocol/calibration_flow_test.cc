// Measured steps and plans: a calibration changes the plans of requests to come, never one that was accepted.
#include <cmath>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/mesh.h"
#include "glog/logging.h"
#include "gtest/gtest.h"
#include "server/protocol/coordinator_state.h"
#include "tests/server/planner/cluster_shapes.h"
#include "tests/server/protocol/link_info.h"
#include "tests/server/protocol/made_plans.h"

namespace stemma::server {
namespace {

using testing::BenchModel;
using testing::BenchRates;
using testing::Link;

constexpr char kDevice[] = "cpu";

std::shared_ptr<const TrainingRequest> Request(const std::string& id, uint32_t epochs, bool validate_only) {
  auto request = std::make_shared<TrainingRequest>();
  v1::UpdateHeader& header = request->update;
  header.mutable_request()->set_request_id(id);
  header.mutable_request()->set_validate_only(validate_only);
  header.set_ppo_epochs(epochs);
  request->num_steps = epochs;
  header.mutable_loss()->set_loss_mode("vanilla");
  header.mutable_loss()->set_loss_agg_mode("token-mean");
  header.mutable_old()->set_from(v1::LogProbSource::ON_POLICY);
  v1::PromptGroup& group = request->groups.emplace_back();
  group.set_uid("g");
  group.set_prompt_tokens(std::string(4 * 40, '\1'));
  for (const char* name : {"a", "b", "c"}) {
    v1::Rollout& rollout = *group.add_rollouts();
    rollout.set_rollout_id(name);
    rollout.set_response_tokens(std::string(4 * 30, '\1'));
    rollout.set_advantage(1);
  }
  return request;
}

CoordinatorOptions Options() {
  CoordinatorOptions options;
  options.model = BenchModel();
  options.config.set_dtype("fp32");
  options.config.set_head_chunk_tokens(512);
  v1::Limits& limits = *options.config.mutable_limits();
  limits.set_requests_in_flight(100);
  limits.set_request_bytes_in_flight(1 << 20);
  limits.set_requests_kept(100);
  return options;
}

class Flow {
 public:
  // hardware: what workers say that they compute on; empty: a CPU.
  explicit Flow(CoordinatorOptions options, const std::vector<v1::LinkInfo>& links = {},
                const std::string& hardware = "")
      : ranks_(NumRanks(options.config.mesh())),
        hardware_(hardware),
        state_(std::move(options)),
        plan_(MakePlanFunction(BenchModel())) {
    Gather(links);
  }

  // All workers come, and say what they measured; the last of them half as fast.
  void Gather(const std::vector<v1::LinkInfo>& links) {
    for (uint32_t rank = 0; rank < ranks_; ++rank) {
      WorkerMessageEvent registered{.session = first_session_ + rank, .message = {}};
      registered.message.mutable_register_()->set_incarnation(absl::StrCat("w", rank));
      const std::string kind = hardware_.empty() ? kDevice : "cuda";
      registered.message.mutable_register_()->set_device(ranks_ == 1 ? kind : absl::StrCat(kind, ":", rank));
      registered.message.mutable_register_()->set_memory_free_bytes(uint64_t{8} << 30);
      Handle(registered);
    }
    if (ranks_ > 1) {
      WorkerMessageEvent opened{.session = first_session_, .message = {}};
      opened.message.mutable_store_opened()->set_address("127.0.0.1:1");
      Handle(opened);
    }
    for (uint32_t rank = 0; rank < ranks_; ++rank) {
      WorkerMessageEvent ready{.session = first_session_ + rank, .message = {}};
      ready.message.mutable_ready()->mutable_config()->set_threads(2);
      ready.message.mutable_ready()->set_device_name(hardware_);
      for (v1::LinkInfo link : links) {
        const double factor = rank + 1 == ranks_ ? 2 : 1;
        link.set_message_s(factor * link.message_s());
        link.set_byte_s(factor * link.byte_s());
        *ready.message.mutable_ready()->add_links() = link;
      }
      Handle(ready);
    }
  }

  // The last worker is lost, and with it the generation; another one gathers, which measures other links.
  void GatherAnew(const std::vector<v1::LinkInfo>& links) {
    Handle(WorkerLostEvent{first_session_ + ranks_ - 1, "killed"});
    first_session_ += ranks_;
    prepares_.clear();
    Gather(links);
  }

  void Submit(const std::string& id, uint32_t epochs) { Handle(SubmitEvent{++call_, Request(id, epochs, false)}); }

  // The plan that a request would get now.
  v1::PlanReport Planned() {
    const Decision decision = Handle(SubmitEvent{++call_, Request("planned", 1, /*validate_only=*/true)});
    for (const Action& action : decision.actions) {
      const auto* reply = std::get_if<ReplyAction>(&action);
      if (reply != nullptr) return std::get<v1::RequestStatus>(reply->reply).plan();
    }
    LOG(FATAL) << "no answer";
  }

  // Votes and applies the prepared step as a machine of such speed; each rank after the first takes a second more.
  void Step(double suffix_s) {
    std::vector<internal::v1::StepKey> keys;
    for (const internal::v1::Prepare& prepare : prepares_) keys.push_back(prepare.key());
    for (uint32_t rank = 0; rank < ranks_; ++rank) {
      WorkerMessageEvent vote{.session = first_session_ + rank, .message = {}};
      *vote.message.mutable_vote()->mutable_key() = keys[rank];
      vote.message.mutable_vote()->set_yes(true);
      vote.message.mutable_vote()->set_grad_norm_squared(1);
      internal::v1::StepSums& sums = *vote.message.mutable_vote()->mutable_sums();
      sums.set_prefix_forward_s(suffix_s / 10);
      sums.set_suffix_s(suffix_s + rank);
      sums.set_prefix_backward_s(suffix_s / 5);
      Handle(vote);
    }
    for (uint32_t rank = 0; rank < ranks_; ++rank) {
      WorkerMessageEvent applied{.session = first_session_ + rank, .message = {}};
      *applied.message.mutable_applied()->mutable_key() = keys[rank];
      applied.message.mutable_applied()->set_apply_s(0.5);
      Handle(applied);
    }
  }

  Decision Handle(const Event& event) {
    Decision decision = testing::HandleAndPlan(state_, plan_, absl::FromUnixSeconds(1000), event);
    for (const Action& action : decision.actions) {
      if (const auto* send = std::get_if<SendAction>(&action)) {
        if (send->message.has_prepare()) {
          prepares_.resize(ranks_);
          prepares_[send->session - first_session_] = send->message.prepare();
        }
      }
      if (const auto* save = std::get_if<SaveCalibrationAction>(&action)) saved_.push_back(save->book);
    }
    return decision;
  }

  const internal::v1::Prepare& prepare() const { return prepares_.front(); }
  const std::vector<CalibrationBook>& saved() const { return saved_; }

 private:
  const uint32_t ranks_;
  const std::string hardware_;
  CoordinatorState state_;
  const PlanFunction plan_;
  SessionId first_session_ = 1;  // of the generation
  CallId call_ = 0;
  std::vector<internal::v1::Prepare> prepares_;  // the last of each rank
  std::vector<CalibrationBook> saved_;
};

// Enough shapes on a machine where everything but matrix products is free, and merges cost much: reuse does not pay.
CalibrationBook BookOfSlowMerges() {
  Rates rates = BenchRates();
  rates[kMerge] = 1e-6;
  ByteShape shape;
  shape.config = BenchModel();
  v1::RunConfig run = Options().config;
  run.set_threads(2);  // as the worker says
  CalibrationBook book;
  for (const int64_t prefix : {100, 300, 700, 1100, 1500, 2000, 2500}) {
    CalibrationSample sample;
    sample.work = ClusterWork(shape, testing::OneGroup(prefix, 2000 / (prefix / 50), 4), {.rows = prefix}, v1::S0, 1);
    sample.seconds = Seconds(sample.work, rates);
    sample.apply_s = 0.1;
    book[CalibrationKey(shape.config, run, kDevice)].push_back(sample);
  }
  return book;
}

TEST(CalibrationFlowTest, AnAcceptedPlanStaysWhileNewPlansFollowTheMeasurements) {
  Flow flow(Options());
  flow.Submit("r", /*epochs=*/8);
  const std::string accepted = flow.prepare().plan().SerializeAsString();
  const double before = flow.Planned().seconds().suffix();
  for (int k = 0; k < 7; ++k) {
    flow.Step(/*suffix_s=*/100);
    v1::StepPlan plan = flow.prepare().plan();
    EXPECT_EQ(plan.epoch(), static_cast<uint32_t>(k + 1));
    plan.set_epoch(0);
    EXPECT_EQ(plan.SerializeAsString(), accepted) << "step " << k + 1;
  }
  EXPECT_EQ(flow.Planned().rates().samples(), 7u);
  EXPECT_FALSE(flow.Planned().rates().calibrated()) << "one shape";
  EXPECT_EQ(flow.Planned().seconds().suffix(), before);
}

// A copy's work is planned for its slowest rank, whose seconds it is held against: one sample for each copy.
TEST(CalibrationFlowTest, TheRanksOfACopyAreOneSample) {
  for (const v1::Mesh& mesh : {MakeMesh({.tp = 2}), MakeMesh({.cp = 2}), MakeMesh({.cp = 2, .tp = 2})}) {
    CoordinatorOptions options = Options();
    *options.config.mutable_mesh() = mesh;
    Flow flow(options);
    flow.Submit("r", /*epochs=*/100);
    flow.Step(/*suffix_s=*/100);
    EXPECT_EQ(flow.Planned().rates().samples(), 1u) << MeshText(mesh);
    for (int k = 1; k < 99 && flow.saved().empty(); ++k) flow.Step(/*suffix_s=*/100);
    ASSERT_FALSE(flow.saved().empty()) << MeshText(mesh);
    const CalibrationSample& sample = flow.saved().back().begin()->second.front();
    EXPECT_EQ(sample.seconds.suffix, 99 + NumRanks(mesh)) << MeshText(mesh);
    EXPECT_EQ(sample.seconds.prefix_forward, 10) << MeshText(mesh);
  }
}

// 2^-12 s a message, 2^-30 s a byte; half as fast at the slowest rank.
TEST(CalibrationFlowTest, PlansCountTheLinksThatWereMeasuredBeforeAnyStep) {
  const double message_s = std::exp2(-12), byte_s = std::exp2(-30);
  CoordinatorOptions options = Options();
  *options.config.mutable_mesh() = MakeMesh({.tp = 2});
  Flow guessed(options), flow(options, {Link("tp", 2, message_s, byte_s)});
  const v1::PlanReport planned = flow.Planned(), without = guessed.Planned();
  EXPECT_EQ(planned.rates().collective(), 2 * message_s);
  EXPECT_EQ(planned.rates().sent(), 2 * byte_s);
  EXPECT_EQ(planned.rates().collective_context(), without.rates().collective_context());
  EXPECT_EQ(without.rates().collective(), kMessageSeconds);
  EXPECT_FALSE(planned.rates().calibrated());
  // A wave has some messages in each layer, each of them slower than was guessed.
  EXPECT_GT(planned.seconds().suffix(), without.seconds().suffix() + 10 * (2 * message_s - kMessageSeconds));
}

TEST(CalibrationFlowTest, AnotherGenerationMeasuresAnewAndAnAcceptedPlanStays) {
  CoordinatorOptions options = Options();
  *options.config.mutable_mesh() = MakeMesh({.tp = 2});
  Flow flow(options, {Link("tp", 2, std::exp2(-12), std::exp2(-30))});
  flow.Submit("r", /*epochs=*/1);
  const std::string accepted = flow.prepare().plan().SerializeAsString();
  flow.GatherAnew({Link("tp", 2, std::exp2(-8), std::exp2(-24))});
  EXPECT_EQ(flow.Planned().rates().collective(), std::exp2(-7));
  EXPECT_EQ(flow.Planned().rates().sent(), std::exp2(-23));
  EXPECT_EQ(flow.prepare().plan().SerializeAsString(), accepted);
  flow.GatherAnew({});
  EXPECT_EQ(flow.Planned().rates().collective(), kMessageSeconds) << "nothing is left of an earlier generation's";
}

TEST(CalibrationFlowTest, APlanCountsTheCopiesOfStatesInHostMemory) {
  CoordinatorOptions options = Options();
  options.config.set_optimizer_residency(v1::DEVICE);
  const double on_device_s = Flow(options).Planned().seconds().apply();
  options.config.set_optimizer_residency(v1::HOST);
  EXPECT_GT(Flow(options).Planned().seconds().apply(), 1.5 * on_device_s);
}

TEST(CalibrationFlowTest, AGpuIsPlannedWithTheRatesOfItsHardware) {
  const auto step_s = [](const std::string& hardware) {
    const v1::PlanReport plan = Flow(Options(), {}, hardware).Planned();
    return plan.seconds().suffix();
  };
  EXPECT_LT(step_s("NVIDIA H200"), step_s("NVIDIA H20")) << "an H20 has a seventh of the products";
  EXPECT_EQ(step_s("Tomorrow's GPU"), step_s("NVIDIA H100 80GB HBM3")) << "one that is not known";
}

TEST(CalibrationFlowTest, RatesOfEarlierRunsDecideAndTheirStepsAreKeptOn) {
  CoordinatorOptions options = Options();
  Flow fresh(options);
  EXPECT_EQ(fresh.Planned().groups_reuse(), 1u);
  options.calibration = BookOfSlowMerges();
  Flow flow(options);
  const v1::PlanReport planned = flow.Planned();
  EXPECT_TRUE(planned.rates().calibrated());
  EXPECT_EQ(planned.groups_reuse(), 0u);
  EXPECT_GT(planned.steps(0).clusters(0).groups(0).epsilon(), 0.1);
  flow.Submit("r", 9);
  const std::string accepted = flow.prepare().plan().SerializeAsString();
  for (int k = 0; k < 8; ++k) flow.Step(/*suffix_s=*/1e-3);
  v1::StepPlan last = flow.prepare().plan();
  last.set_epoch(0);
  EXPECT_EQ(last.SerializeAsString(), accepted);
  EXPECT_LT(flow.Planned().seconds().suffix(), planned.seconds().suffix()) << "the measured machine is faster";
  ASSERT_EQ(flow.saved().size(), 1u);
  EXPECT_EQ(flow.saved()[0].begin()->second.size(), 7u + 8u);
}

TEST(CalibrationFlowTest, AnotherMachinesRatesAreNotUsed) {
  CoordinatorOptions options = Options();
  CalibrationBook book;
  book["another"] = BookOfSlowMerges().begin()->second;
  options.calibration = book;
  EXPECT_FALSE(Flow(options).Planned().rates().calibrated());
}

}  // namespace
}  // namespace stemma::server
