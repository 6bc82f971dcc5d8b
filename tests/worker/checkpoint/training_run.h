// A run of some steps on engines in this process, its saves, and its whole state, whatever the number of its ranks.
#pragma once

#include <ATen/ops/full_like.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/in_process.h"
#include "tests/testing/status_matchers.h"
#include "tests/worker/checkpoint/saved_checkpoint.h"
#include "worker/backend/cpu/cpu_backend.h"

namespace stemma::testing {

// Name -> a tensor that nothing else changes.
using StateTensors = std::map<std::string, at::Tensor>;

// Names the first tensor whose shape, dtype or bits differ; empty: none.
inline std::string FirstDifferent(const StateTensors& a, const StateTensors& b) {
  if (a.size() != b.size()) return "the number of tensors";
  for (const auto& [name, x] : a) {
    if (!b.contains(name)) return name + " is missing";
    const at::Tensor& y = b.at(name);
    if (x.sizes() != y.sizes() || x.scalar_type() != y.scalar_type()) return name + " by shape or dtype";
    if (std::memcmp(x.data_ptr(), y.data_ptr(), x.nbytes()) != 0) return name;
  }
  return "";
}

// Masters, moments and weights; a state from the ranks that own its elements.
inline StateTensors WholeState(const InProcess& run, int ranks) {
  StateTensors state;
  for (size_t i = 0; i < run.weights().parameters.size(); ++i) {
    const Parameter& first = run.weights().parameters[i];
    const auto gather = [&](at::Tensor Parameter::*member) {
      at::Tensor whole = at::full_like(first.grad, -1, at::TensorOptions(first.grad.scalar_type()));
      for (int rank = 0; rank < ranks; ++rank) {
        const Parameter& p = run.weights(rank).parameters[i];
        const at::Tensor& own = p.*member;
        Parameter::Elements(whole, own.is_same(p.weight) ? 0 : p.state_begin, own.numel()).copy_(own.reshape({-1}));
      }
      return whole;
    };
    state[first.name + " master"] = gather(&Parameter::master);
    state[first.name + " exp_avg"] = gather(&Parameter::exp_avg);
    state[first.name + " exp_avg_sq"] = gather(&Parameter::exp_avg_sq);
    for (int rank = 0; rank < ranks; ++rank) {
      state[first.name + " weight@" + std::to_string(rank)] = run.weights(rank).parameters[i].weight.clone();
    }
  }
  return state;
}

struct RunSettings {
  std::string model, data;
  std::string dtype = "fp32";
  int ranks = 1;
  v1::OptimizerResidency residency = v1::DEVICE;
  std::string checkpoint = "";  // that is loaded
  uint64_t step = 0;            // that it is at
};

// Null, and the test fails, where the engines cannot be made.
inline std::unique_ptr<InProcess> MakeRun(const RunSettings& settings) {
  InProcessOptions options;
  options.run.set_model(settings.model);
  options.run.set_dtype(settings.dtype);
  options.run.set_schedule(v1::REUSE);
  options.run.set_head_chunk_tokens(128);
  options.run.set_threads(1);
  options.run.set_optimizer_residency(settings.residency);
  options.run.mutable_mesh()->set_dp(static_cast<uint32_t>(settings.ranks));
  options.data_directory = settings.data;
  options.checkpoint = settings.checkpoint;
  options.step = settings.step;
  auto run = InProcess::Create(options, MakeCpuBackend());
  EXPECT_THAT(run, IsOk());
  return run.ok() ? *std::move(run) : nullptr;
}

// Step `number` of every run: the same request for the same number.
inline void MakeStep(InProcess& run, uint64_t number) {
  const int64_t vocab = run.weights().config.vocab_size;
  const auto length = static_cast<int64_t>(3 + number % 5);
  TrainingRequest request = SyntheticRequest({length, 2, 7}, {3, length}, vocab);
  request.update.mutable_adam()->set_learning_rate(1e-2);
  request.update.mutable_adam()->set_beta1(0.9);
  request.update.mutable_adam()->set_beta2(0.95);
  request.update.mutable_adam()->set_weight_decay(0.1);
  request.update.mutable_adam()->set_eps(1e-8);
  ASSERT_THAT(run.Load(std::move(request)), IsOk());
  const auto vote = run.Prepare(0);
  ASSERT_THAT(vote, IsOk());
  ASSERT_TRUE(vote->yes()) << vote->message();
  ASSERT_THAT(run.Apply(0, *vote), IsOk());
}

// The saves of all ranks into one folder, whose parts are checked when they are waited for.
class RanksSave {
 public:
  RanksSave(InProcess& run, int ranks, const std::string& data, const std::string& folder)
      : path_(data + "/checkpoints/" + folder) {
    std::filesystem::create_directories(path_ + "/optim");
    for (int rank = 0; rank < ranks; ++rank) {
      answers_.push_back(std::make_unique<SavedAnswers>());
      internal::v1::Save save;
      save.set_id("save-" + folder);
      save.set_folder(folder);
      EXPECT_THAT(run.engine(rank).Save(save, answers_.back()->Functions()), IsOk());
      EXPECT_EQ(answers_.back()->staged().id(), save.id());
    }
  }

  const std::string& path() const { return path_; }
  SavedAnswers& answers(int rank) { return *answers_[static_cast<size_t>(rank)]; }
  // Returns the digest of the weights that all ranks tell.
  std::string WaitForWhole() {
    CheckpointParts parts;
    std::string digest;
    for (const auto& answers : answers_) {
      const internal::v1::SaveDone done = answers->WaitForDone();
      EXPECT_FALSE(done.has_failure()) << done.failure().ShortDebugString();
      EXPECT_EQ(done.id(), answers->staged().id());
      EXPECT_TRUE(digest.empty() || digest == done.weights_digest());
      digest = done.weights_digest();
      for (const internal::v1::CheckpointPart& part : done.parts()) {
        EXPECT_EQ(part.rank(), &answers - answers_.data());
        parts.push_back(part);
      }
    }
    ExpectWholeParts(path_, parts);
    return digest;
  }

 private:
  const std::string path_;
  std::vector<std::unique_ptr<SavedAnswers>> answers_;  // by rank
};

}  // namespace stemma::testing
