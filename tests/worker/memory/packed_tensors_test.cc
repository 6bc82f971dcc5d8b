#include "worker/memory/packed_tensors.h"

#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include <cstring>
#include <utility>

#include "tests/testing/namespaces.h"
#include "tests/worker/memory/tape_entries.h"

namespace stemma::testing {
namespace {

using PackedTensorsTest = CountedMemoryTest;

void CopyAll(const std::vector<CopySpan>& spans) {
  for (const CopySpan& span : spans) std::memcpy(span.to, span.from, static_cast<size_t>(span.bytes));
}

// To a block and back.
std::vector<at::Tensor> RoundTrip(std::vector<at::Tensor> tensors) {
  PackedTensors packed(std::move(tensors));
  std::string block(static_cast<size_t>(packed.bytes()), 'x');
  CopyAll(packed.SpansTo(block.data()));
  packed.FreeDevice();
  packed.AllocateDevice();
  CopyAll(packed.SpansFrom(block.data()));
  return std::move(packed).Release();
}

TEST_F(PackedTensorsTest, EveryShapeStrideAndDtypeComesBackTheSame) {
  const at::Tensor base = Filled({6, 10, 8}, at::kFloat, 1);
  const std::vector<at::Tensor> cases = {
      Filled({5, 7}, at::kFloat, 2),
      Filled({5, 7}, at::kBFloat16, 3),
      Filled({3}, at::kDouble, 4),
      Filled({4, 4}, at::kLong, 5),
      Filled({}, at::kFloat, 6),
      at::Tensor(),
      Filled({0, 4}, at::kFloat, 7),
      base.transpose(0, 2),
      base.slice(0, 2, 5),
      base.slice(1, 3, 4),
      base.slice(2, 1, 8, 3),
      base.select(1, 9),
      Filled({4, 1}, at::kFloat, 8).expand({4, 9}),
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(i);
    const at::Tensor back = RoundTrip({cases[i]}).at(0);
    ASSERT_EQ(back.defined(), cases[i].defined());
    EXPECT_EQ(BitsOf(back), BitsOf(cases[i]));
    if (!back.defined()) continue;
    EXPECT_EQ(back.sizes(), cases[i].sizes());
    EXPECT_EQ(back.strides(), cases[i].strides());
    EXPECT_EQ(back.scalar_type(), cases[i].scalar_type());
    if (back.numel() == 0) continue;
    // Kernels may round differently on another alignment.
    EXPECT_EQ(reinterpret_cast<uintptr_t>(back.const_data_ptr()) % 64,
              reinterpret_cast<uintptr_t>(cases[i].const_data_ptr()) % 64);
  }
}

TEST_F(PackedTensorsTest, TensorsOfOneStorageGoOnceAndShareItAfterwards) {
  std::vector<at::Tensor> both;
  {
    const at::Tensor whole = Filled({64, 32}, at::kFloat, 1);
    both = {whole.slice(1, 0, 16), whole.slice(1, 16, 32)};
  }
  const std::vector<std::string> bits = BitsOf(both);
  PackedTensors packed(std::move(both));
  EXPECT_EQ(packed.bytes(), 64 * 32 * 4);
  std::string block(static_cast<size_t>(packed.bytes()), 'x');
  CopyAll(packed.SpansTo(block.data()));
  EXPECT_EQ(device_bytes(), packed.bytes());
  packed.FreeDevice();
  EXPECT_EQ(device_bytes(), 0);
  packed.AllocateDevice();
  EXPECT_EQ(device_bytes(), packed.bytes());
  CopyAll(packed.SpansFrom(block.data()));
  both = std::move(packed).Release();
  EXPECT_EQ(BitsOf(both), bits);
  EXPECT_TRUE(both[0].is_alias_of(both[1]));
}

// The span of a shared storage begins at its lowest tensor, wherever that stands in the list.
TEST_F(PackedTensorsTest, TensorsOfOneStorageComeBackInAnyOrder) {
  const at::Tensor whole = Filled({96, 32}, at::kFloat, 1);
  const std::vector<at::Tensor> parts = {whole.slice(0, 0, 7), whole.slice(0, 40, 50), whole.slice(0, 80, 96)};
  for (const std::vector<size_t>& order : {std::vector<size_t>{2, 1, 0}, {1, 2, 0}, {1, 0, 2}, {2, 0, 1}}) {
    std::vector<at::Tensor> tensors;
    for (const size_t i : order) tensors.push_back(parts[i]);
    EXPECT_EQ(PackedTensors(tensors).bytes(), 96 * 32 * 4);
    EXPECT_EQ(BitsOf(RoundTrip(tensors)), BitsOf(tensors));
  }
}

TEST_F(PackedTensorsTest, OfALargeStorageOnlyTheCoveredSpanGoes) {
  const at::Tensor whole = Filled({1000, 16}, at::kFloat, 1);
  EXPECT_EQ(PackedTensors({whole.slice(0, 500, 510)}).bytes(), 10 * 16 * 4);
}

TEST_F(PackedTensorsTest, NothingTakesNoBytes) {
  EXPECT_EQ(PackedTensors({}).bytes(), 0);
  EXPECT_EQ(PackedTensors({at::Tensor(), at::zeros({3, 0})}).bytes(), 0);
}

TEST_F(PackedTensorsTest, ControlOneFlippedBitIsSeen) {
  const at::Tensor t = Filled({5, 7}, at::kFloat, 2);
  at::Tensor flipped = t.clone();
  static_cast<unsigned char*>(flipped.mutable_data_ptr())[77] ^= 1;
  EXPECT_NE(BitsOf(flipped), BitsOf(t));
}

TEST_F(PackedTensorsTest, ATensorThatIsAskedForWhileAwayIsABug) {
  PackedTensors packed({Filled({4}, at::kFloat, 1)});
  packed.FreeDevice();
  EXPECT_DEATH(std::move(packed).Release(), "while they are away");
}

}  // namespace
}  // namespace stemma::testing
