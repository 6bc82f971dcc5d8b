// Entries as a layer's tape has them, and what must be the same after a way to the host and back.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "tests/testing/namespaces.h"
#include "worker/memory/cpu_allocator.h"

namespace stemma::testing {

// Every bit set by `seed`.
inline at::Tensor Filled(at::IntArrayRef sizes, at::ScalarType dtype, uint64_t seed) {
  at::Tensor t = at::empty(sizes, at::TensorOptions(dtype));
  auto* bytes = static_cast<unsigned char*>(t.mutable_data_ptr());
  uint64_t state = seed * 2654435761u + 1;
  for (size_t i = 0; i < t.nbytes(); ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    bytes[i] = static_cast<unsigned char>(state >> 56);
  }
  return t;
}

// The values' bytes in the order of indices; undefined: none.
inline std::string BitsOf(const at::Tensor& t) {
  if (!t.defined()) return "undefined";
  const at::Tensor c = t.contiguous();
  return {static_cast<const char*>(c.const_data_ptr()), c.nbytes()};
}

inline std::vector<std::string> BitsOf(const std::vector<at::Tensor>& tensors) {
  std::vector<std::string> bits;
  for (const at::Tensor& t : tensors) bits.push_back(BitsOf(t));
  return bits;
}

// A matrix, an undefined tensor, a transposed matrix and a vector; rows are a multiple of 16.
inline std::vector<at::Tensor> LayerEntry(uint64_t seed, int64_t rows) {
  return {Filled({rows, 128}, at::kFloat, 3 * seed),
          {},
          Filled({rows, 32}, at::kDouble, 3 * seed + 1).t(),
          Filled({rows}, at::kFloat, 3 * seed + 2)};
}
inline int64_t LayerEntryBytes(int64_t rows) { return rows * (128 * 4 + 32 * 8 + 4); }

class CountedMemoryTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { InstallCpuAllocator(); }
  // Since the test began.
  int64_t device_bytes() const { return CpuMemoryStats().current_bytes - bytes_before_; }

 private:
  const int64_t bytes_before_ = CpuMemoryStats().current_bytes;
};

}  // namespace stemma::testing
