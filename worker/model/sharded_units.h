// Gathers sharded parameters, and hands their gradients to their owners (ZeRO-3), unit by unit while a pass runs.
//
// A pass says beforehand which visits each of its operations makes: so the next visit's unit is gathered while this
// one's runs, and all ranks make the same collectives in the same order, whether they compute something in an operation
// or only take part. Gradients of a visit are sums over what this rank computed in it, or, where the visits before it
// did not reduce them, since the pass began; once the next visit begins they travel beside it, and are added at their
// owners, in the order of the visits. Invariants:
//  (1) every rank makes the same visits, of the same passes; a pass begins with nothing gathered.
//  (2) one reduction is under way at most, and of each slot one gathering.
//  (3) gradients begin with zeros, of each visit or of the pass: a rank without rows hands out zeros.
//
// Owned by worker/engine; engine thread only.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "common/cost/parameter_units.h"
#include "worker/model/gradient_sums.h"
#include "worker/model/parameter_access.h"
#include "worker/model/weights.h"
#include "worker/parallel/communicator.h"

namespace stemma::worker {

// The names of the collectives.
inline constexpr char kUnitName[] = "parameters", kUnitGradientsName[] = "parameter_gradients";

class ShardedUnits final : public ParameterAccess {
 public:
  // `data`: the ranks that divide the parameters. Takes the memory of a reduction, where the weights are trained. Both
  // outlive it. REQUIRES: weights.is_sharded().
  ShardedUnits(Communicator& data, Weights& weights);
  ~ShardedUnits() override;
  ShardedUnits(const ShardedUnits&) = delete;
  ShardedUnits& operator=(const ShardedUnits&) = delete;

  // `visits`: of each operation of the pass. Where some make gradients that they do not reduce, takes memory for those
  // of all units until the pass ends, and throws if there is none.
  void BeginPass(OperationVisits visits);
  // Says which operation's visits come next. Those between are left out: by every rank. CHECKs that the visits of the
  // one before were made.
  void BeginOperation(size_t operation);
  // Waits until all gradients are at their owners. Called when every operation was run or left out.
  void EndPass();
  // Ends a pass that all ranks stop between the same two operations: its gradients are worth nothing.
  void StopPass();
  // Ends one that this rank alone cannot go on with, or others: the generation is over.
  void Break();

  void Embedding(UnitUse use) override { Visit(weights_.units.embedding, use); }
  void Layer(int64_t layer, UnitUse use) override { Visit(weights_.units.first_layer + static_cast<int>(layer), use); }
  void Head(UnitUse use) override { Visit(weights_.units.head, use); }
  double waited_s() const override { return waited_s_; }

 private:
  struct OpenVisit {
    int unit;
    bool reduces;
  };
  struct Reduction {
    int unit;
    std::unique_ptr<PendingCollective> pending;
  };

  const UnitBuffers& BuffersOf(int unit) const { return weights_.unit_buffers[static_cast<size_t>(unit)]; }
  size_t SlotOf(int unit) const { return static_cast<size_t>(weights_.units.slot(unit)); }
  at::Tensor OwnPart(const at::Tensor& gathered, int unit) const;

  bool IsIdle() const;
  void Visit(int unit, UnitUse use);
  void CheckAllWereMade() const;  // of the operation at work
  void StartGather(int unit);
  void FinishGather(size_t slot);
  void OpenGradients(const UnitVisit& visit);
  void CloseGradients();
  void FinishReduction();
  void Wait(std::unique_ptr<PendingCollective> pending);

  Communicator& data_;
  Weights& weights_;
  at::Tensor scratch_;  // of a reduction
  OperationVisits visits_;
  size_t operation_ = 0, visit_ = 0;  // the operation at work, and its visit that comes next
  bool begun_ = false;                // there is one
  std::optional<UnitWalk> walk_;
  std::array<std::unique_ptr<PendingCollective>, ParameterUnits::kSlots> gathers_;
  std::optional<OpenVisit> open_;     // whose gradients are being made
  std::optional<GradientSums> sums_;  // none: each visit reduces what it makes
  std::optional<Reduction> reduction_;
  double waited_s_ = 0;
};

}  // namespace stemma::worker
