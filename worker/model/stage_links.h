// What the stages of a pipeline hand to each other: hidden states of a prefix or a wave to the next stage, their
// gradients to the one before. Phases A, B and C call it where their layers begin and end (worker/model/prefix.cc,
// worker/model/wave.cc); a stage that has neighbours on both sides neither embeds tokens nor has a head.
//
// A rank hands its own rows [rows, D] to the rank of equal place in the next stage: those of its tensor-parallel part
// and of its context-parallel share. Both stages run the same segments in the same order, so what is sent and what is
// received meet in order. Receiving waits; sending does not, and the tensor is held until it has been taken.
//
// With one stage nothing moves: OnlyStage(). Tests put wrong strategies in its place. Engine thread only. Throws
// CollectiveError where a rank has gone.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <memory>

#include "worker/parallel/communicator.h"

namespace stemma::worker {

// The names of the messages.
inline constexpr char kHiddenName[] = "hidden", kHiddenGradientsName[] = "hidden_gradients", kWordName[] = "cluster";

class StageLinks {
 public:
  virtual ~StageLinks() = default;

  virtual bool is_first() const = 0;
  virtual bool is_last() const = 0;

  // Fills `x_TD` with what the stage before has made of the next segment. REQUIRES: not the first stage.
  virtual void ReceiveHidden(at::Tensor& x_TD) = 0;
  // Fills `dx_TD` with the gradient of what this stage has sent. REQUIRES: not the last stage.
  virtual void ReceiveGradient(at::Tensor& dx_TD) = 0;
  // Hand on what this stage has made; the tensor is not written any more. REQUIRES: not the last, not the first stage.
  virtual void SendHidden(at::Tensor y_TD) = 0;
  virtual void SendGradient(at::Tensor dx_TD) = 0;

  // Takes a word from the stage before, and hands one to the next, in the order of the hidden states. REQUIRES: as of
  // ReceiveHidden and SendHidden.
  virtual int64_t ReceiveWord() = 0;
  virtual void SendWord(int64_t word) = 0;

  // Returns how many hidden states have been sent.
  virtual int64_t hidden_sent() const = 0;
  // Lets go of the first `count` hidden states of all that were sent. Waits until they have been taken; a caller that
  // has their gradients waits for nothing.
  virtual void RetireHidden(int64_t count) = 0;
  // Lets go of all that was sent; waits until it has been taken. Called where a pass has ended.
  virtual void EndPass() = 0;
  // Returns how long calls have waited for another stage, and for what it sent, in all.
  virtual double waited_s() const = 0;
};

// Returns the strategy of a rank that has all layers. It has no state and lives for ever.
StageLinks& OnlyStage();

// The strategy over a communicator of the stages.
class RankStageLinks : public StageLinks {
 public:
  // Sent gradients that are kept in memory, taken or not. With so many that are not, SendGradient waits: a stage runs
  // ahead of the one before by so much at most.
  static constexpr size_t kGradientsHeld = 2;

  explicit RankStageLinks(Communicator& stages) : stages_(stages) {}  // which outlives this
  ~RankStageLinks() override;

  bool is_first() const override { return stages_.rank() == 0; }
  bool is_last() const override { return stages_.rank() == stages_.size() - 1; }
  void ReceiveHidden(at::Tensor& x_TD) override;
  void ReceiveGradient(at::Tensor& dx_TD) override;
  void SendHidden(at::Tensor y_TD) override;
  void SendGradient(at::Tensor dx_TD) override;
  int64_t ReceiveWord() override;
  void SendWord(int64_t word) override;
  int64_t hidden_sent() const override { return hidden_retired_ + static_cast<int64_t>(hidden_.size()); }
  void RetireHidden(int64_t count) override;
  void EndPass() override;
  double waited_s() const override { return waited_s_; }

 private:
  // What was sent and may not have been taken.
  struct Sent {
    at::Tensor values;
    std::unique_ptr<PendingCollective> message;
  };
  void Receive(const char* name, at::Tensor& values, int from);
  void Retire(std::deque<Sent>& sent);  // the oldest

  Communicator& stages_;
  std::deque<Sent> hidden_, gradients_, words_;
  int64_t hidden_retired_ = 0;
  double waited_s_ = 0;
};

}  // namespace stemma::worker
