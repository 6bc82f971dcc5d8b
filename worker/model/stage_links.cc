#include "worker/model/stage_links.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "common/base/clock.h"
#include "worker/parallel/collective_error.h"

namespace stemma::worker {
namespace {

class AllLayers final : public StageLinks {
 public:
  bool is_first() const override { return true; }
  bool is_last() const override { return true; }
  void ReceiveHidden(at::Tensor& /*x_TD*/) override { LOG(FATAL) << "there is no stage before"; }
  void ReceiveGradient(at::Tensor& /*dx_TD*/) override { LOG(FATAL) << "there is no next stage"; }
  void SendHidden(at::Tensor /*y_TD*/) override { LOG(FATAL) << "there is no next stage"; }
  void SendGradient(at::Tensor /*dx_TD*/) override { LOG(FATAL) << "there is no stage before"; }
  int64_t ReceiveWord() override { LOG(FATAL) << "there is no stage before"; }
  void SendWord(int64_t /*word*/) override { LOG(FATAL) << "there is no next stage"; }
  int64_t hidden_sent() const override { return 0; }
  void RetireHidden(int64_t count) override { CHECK_EQ(count, 0); }
  void EndPass() override {}
  double waited_s() const override { return 0; }
};

}  // namespace

StageLinks& OnlyStage() {
  static AllLayers all_layers;
  return all_layers;
}

RankStageLinks::~RankStageLinks() {
  // None is left but of a pass that ended early, whose messages nobody may ever take.
  const auto sent = {&hidden_, &gradients_, &words_};
  if (std::all_of(sent.begin(), sent.end(), [](const std::deque<Sent>* of_kind) { return of_kind->empty(); })) return;
  stages_.GiveUp();
  for (const std::deque<Sent>* of_kind : sent) {
    for (const Sent& one : *of_kind) one.message->Wait().IgnoreError();
  }
}

void RankStageLinks::Receive(const char* name, at::Tensor& values, int from) {
  const double begin_s = RealClock().MonotonicSeconds();
  ThrowUnlessOk(stages_.Receive(name, values, from));
  waited_s_ += RealClock().MonotonicSeconds() - begin_s;
}

void RankStageLinks::ReceiveHidden(at::Tensor& x_TD) {
  CHECK(!is_first());
  Receive(kHiddenName, x_TD, stages_.rank() - 1);
}

void RankStageLinks::ReceiveGradient(at::Tensor& dx_TD) {
  CHECK(!is_last());
  Receive(kHiddenGradientsName, dx_TD, stages_.rank() + 1);
}

void RankStageLinks::SendHidden(at::Tensor y_TD) {
  CHECK(!is_last());
  y_TD = y_TD.contiguous();
  std::unique_ptr<PendingCollective> message = stages_.StartSend(kHiddenName, y_TD, stages_.rank() + 1);
  hidden_.push_back({std::move(y_TD), std::move(message)});
}

void RankStageLinks::SendGradient(at::Tensor dx_TD) {
  CHECK(!is_first());
  dx_TD = dx_TD.contiguous();
  std::unique_ptr<PendingCollective> message = stages_.StartSend(kHiddenGradientsName, dx_TD, stages_.rank() - 1);
  gradients_.push_back({std::move(dx_TD), std::move(message)});
  while (gradients_.size() > kGradientsHeld) Retire(gradients_);
}

int64_t RankStageLinks::ReceiveWord() {
  at::Tensor word = at::empty({1}, at::kLong);
  Receive(kWordName, word, stages_.rank() - 1);
  return word.item<int64_t>();
}

void RankStageLinks::SendWord(int64_t word) {
  at::Tensor value = at::full({1}, word, at::kLong);
  std::unique_ptr<PendingCollective> message = stages_.StartSend(kWordName, value, stages_.rank() + 1);
  words_.push_back({std::move(value), std::move(message)});
  while (words_.front().message->Done()) {
    Retire(words_);
    if (words_.empty()) break;
  }
}

void RankStageLinks::RetireHidden(int64_t count) {
  for (; hidden_retired_ < count; ++hidden_retired_) Retire(hidden_);
}

void RankStageLinks::EndPass() {
  RetireHidden(hidden_sent());
  while (!gradients_.empty()) Retire(gradients_);
  while (!words_.empty()) Retire(words_);
}

void RankStageLinks::Retire(std::deque<Sent>& sent) {
  CHECK(!sent.empty());
  const Sent oldest = std::move(sent.front());
  sent.pop_front();
  const double begin_s = RealClock().MonotonicSeconds();
  ThrowUnlessOk(oldest.message->Wait());
  waited_s_ += RealClock().MonotonicSeconds() - begin_s;
}

}  // namespace stemma::worker
