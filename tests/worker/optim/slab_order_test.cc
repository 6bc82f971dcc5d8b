#include "worker/optim/slab_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "common/cost/state_slabs.h"

namespace stemma::worker {
namespace {

TEST(CutSlabsTest, SmallParametersShareASlabAndALargeOneTakesSeveral) {
  const std::vector<Slab> slabs = CutSlabs(RangesOfAll({5, 100, 16, 3}), 64);
  EXPECT_EQ(slabs,
            (std::vector<Slab>{{{0, 0, 5, 0}, {1, 0, 48, 16}}, {{1, 48, 52, 0}}, {{2, 0, 16, 0}, {3, 0, 3, 16}}}));
}

TEST(CutSlabsTest, EveryElementIsThereOnceAndCutsStandOnUnits) {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    std::vector<int64_t> elements(1 + random() % 6);
    StateSlabShape shape{.slab_elements = 1 + static_cast<int64_t>(random() % 300)};
    for (int64_t& count : elements) shape.elements += RoundUpToSlabUnit(count = random() % 700);
    const std::vector<Slab> slabs = CutSlabs(RangesOfAll(elements), shape.slab_elements);
    ASSERT_EQ(static_cast<int64_t>(slabs.size()), StateSlabCount(shape));
    std::vector<int64_t> seen(elements.size());
    for (const Slab& slab : slabs) {
      int64_t end = 0;
      for (const SlabPiece& piece : slab) {
        ASSERT_GT(piece.count, 0);
        ASSERT_EQ(piece.begin, std::exchange(seen[static_cast<size_t>(piece.parameter)], piece.begin + piece.count));
        ASSERT_EQ(piece.begin % kStateSlabUnit, 0);
        ASSERT_EQ(piece.slab_begin, end) << "on a unit, without overlap or gap";
        end += RoundUpToSlabUnit(piece.count);
      }
      ASSERT_LE(end, RoundUpToSlabUnit(shape.slab_elements));
    }
    ASSERT_EQ(seen, elements);
  }
}

TEST(SlabOrderTest, OfThreeSlabs) {
  using enum SlabActionKind;
  EXPECT_EQ(SlabOrder(3), (std::vector<SlabAction>{{kStartIn, 0, 0},
                                                   {kStartIn, 1, 1},
                                                   {kWaitIn, 0, 0},
                                                   {kStep, 0, 0},
                                                   {kStartOut, 0, 0},
                                                   {kStartIn, 2, 2},
                                                   {kWaitIn, 1, 1},
                                                   {kStep, 1, 1},
                                                   {kStartOut, 1, 1},
                                                   {kWaitOut, 0, 0},
                                                   {kWaitIn, 2, 2},
                                                   {kStep, 2, 2},
                                                   {kStartOut, 2, 2},
                                                   {kWaitOut, 1, 1},
                                                   {kWaitOut, 2, 2}}));
  EXPECT_TRUE(SlabOrder(0).empty());
}

// Walks through an order: what each buffer holds, and what is being copied.
class Walk {
 public:
  void Do(const SlabAction& a) {
    switch (a.kind) {
      case SlabActionKind::kStartIn:
        EXPECT_EQ(holder_.count(a.buffer), 0u) << "slab " << a.slab << " takes a buffer in use";
        holder_[a.buffer] = a.slab;
        coming_.insert(a.slab);
        return;
      case SlabActionKind::kWaitIn:
        EXPECT_EQ(coming_.erase(a.slab), 1u);
        return;
      case SlabActionKind::kStep:
        EXPECT_EQ(holder_.at(a.buffer), a.slab);
        EXPECT_TRUE(coming_.count(a.slab) == 0 && going_.count(a.slab) == 0) << "stepped while it is copied";
        stepped_.push_back(a.slab);
        beside_[a.slab] = {coming_, going_};
        return;
      case SlabActionKind::kStartOut:
        EXPECT_EQ(stepped_.back(), a.slab);
        going_.insert(a.slab);
        return;
      case SlabActionKind::kWaitOut:
        EXPECT_EQ(going_.erase(a.slab), 1u);
        EXPECT_EQ(holder_.at(a.buffer), a.slab);
        holder_.erase(a.buffer);
        return;
    }
  }

  std::map<int64_t, int64_t> holder_;                                          // buffer -> slab
  std::set<int64_t> coming_, going_;                                           // slabs
  std::vector<int64_t> stepped_;                                               // in order
  std::map<int64_t, std::pair<std::set<int64_t>, std::set<int64_t>>> beside_;  // a step -> what is copied meanwhile
};

TEST(SlabOrderTest, WhileASlabIsSteppedTheNextComesInAndTheOneBeforeGoesOut) {
  for (int64_t slabs = 1; slabs < 12; ++slabs) {
    Walk walk;
    for (const SlabAction& action : SlabOrder(slabs)) {
      ASSERT_LT(action.buffer, kStateSlabsOnDevice);
      walk.Do(action);
    }
    EXPECT_TRUE(walk.holder_.empty() && walk.coming_.empty() && walk.going_.empty());
    ASSERT_EQ(static_cast<int64_t>(walk.stepped_.size()), slabs);
    EXPECT_TRUE(std::is_sorted(walk.stepped_.begin(), walk.stepped_.end()));
    for (int64_t slab = 0; slab < slabs; ++slab) {
      EXPECT_EQ(walk.beside_.at(slab).first.count(slab + 1), slab + 1 < slabs ? 1u : 0u) << slab << " of " << slabs;
      EXPECT_EQ(walk.beside_.at(slab).second.count(slab - 1), slab > 0 ? 1u : 0u) << slab << " of " << slabs;
    }
  }
}

TEST(StateSlabBytesTest, AreThreeSlabsUnlessThereIsLess) {
  EXPECT_EQ(StateSlabBytes({.elements = 10'000, .states = 2, .element_bytes = 4, .slab_elements = 1024}),
            3 * 1024 * 2 * 4);
  EXPECT_EQ(StateSlabBytes({.elements = 10'000, .states = 3, .element_bytes = 4, .slab_elements = 1009}),
            3 * 1024 * 3 * 4);
  EXPECT_EQ(StateSlabBytes({.elements = 2'000, .states = 2, .element_bytes = 8, .slab_elements = 1024}),
            2 * 1024 * 2 * 8);
  EXPECT_EQ(StateSlabBytes({.elements = 160, .states = 2, .element_bytes = 4, .slab_elements = 1024}), 160 * 2 * 4);
  EXPECT_EQ(StateSlabBytes({.elements = 0}), 0);
}

// The fused op's chunks and launches are those of LibTorch's MultiTensorApply.cuh.
constexpr int64_t kChunkElements = 65536, kBlocksOfALaunch = 320;

TEST(GpuSlabTest, FillsAGpu) {
  constexpr int64_t kMultiprocessors = 148;
  EXPECT_GE(kGpuSlabElements / kChunkElements, 2 * kMultiprocessors);
  EXPECT_EQ(kGpuSlabElements % kChunkElements, 0);
}

// The parameters of Llama-3-8B as worker/model/weights.cc has them: two matrices of the vocabulary, and the same layers
// between them.
std::vector<int64_t> ElementsOfAnEightBillionModel() {
  constexpr int64_t kVocab = 128256, kHidden = 4096, kQkv = 6144, kFfn = 14336;
  std::vector<int64_t> elements = {kVocab * kHidden};
  for (int64_t layer = 0; layer < 32; ++layer) {
    for (const int64_t count :
         {kHidden, kQkv * kHidden, kHidden * kHidden, kHidden, 2 * kFfn * kHidden, kHidden * kFfn}) {
      elements.push_back(count);
    }
  }
  elements.push_back(kHidden);
  elements.push_back(kVocab * kHidden);
  return elements;
}

// A chunk has elements of one parameter only.
TEST(GpuSlabTest, IsOneLaunchOfTheFusedOpWithPartsOfSeveralParameters) {
  for (const Slab& slab : CutSlabs(RangesOfAll(ElementsOfAnEightBillionModel()), kGpuSlabElements)) {
    int64_t chunks = 0;
    for (const SlabPiece& piece : slab) chunks += DivideUp(piece.count, kChunkElements);
    EXPECT_LE(chunks, kBlocksOfALaunch) << slab.size() << " parts";
  }
}

}  // namespace
}  // namespace stemma::worker
