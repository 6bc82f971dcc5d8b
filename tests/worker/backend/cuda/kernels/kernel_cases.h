// What each entry of the kernel tables is called with in tests: drawn shapes and numbers, on any device.
//
// A case calls the entries of one op and gives what they wrote. Two tables that are given the same seed are called with
// the same operands.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <random>
#include <vector>

#include "tests/testing/namespaces.h"
#include "worker/backend/cuda/attention/attention_kernels.h"
#include "worker/backend/kernels.h"

namespace stemma::testing {

// Where and how operands lie.
struct Placement {
  at::Device device = at::kCPU;
  bool unaligned = false;   // no tensor begins at a multiple of 16 bytes
  int unaligned_one = -1;   // nor does this one, counted in the order in which they are placed
  bool rows_apart = false;  // eight rows, of heads that are longer by an element than their size
  bool swapped = false;     // those lie in the memory of [b, a, c]; where they are not apart, by chance
  bool large = false;       // rows wider than the threads of a block keep
  bool many_rows = false;   // more rows, or rows of heads, than a device's grid has teams
  bool no_rows = false;
};

// Draws sizes and numbers from a seed that failures print.
class Drawn {
 public:
  Drawn(uint32_t seed, const Placement& placement);
  int64_t Size(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random_); }
  bool Coin() { return Size(0, 1) == 1; }
  // A row's width: every other one in whole packs of 16 bytes.
  int64_t Width();
  int64_t Rows();
  // Rows of so many heads, and the size of one.
  int64_t RowsOf(int64_t heads);
  int64_t HeadSize(int64_t size) const { return placement_.many_rows ? 8 : size; }

  at::Tensor Normal(at::IntArrayRef sizes, at::ScalarType dtype);
  at::Tensor Integers(int64_t low, int64_t high, int64_t count);
  at::Tensor Targets(int64_t vocab, int64_t rows);
  // A tensor of ones, to be added to, or of NaNs, to be written.
  at::Tensor Ones(at::IntArrayRef sizes, at::ScalarType dtype);
  at::Tensor Unwritten(at::IntArrayRef sizes, at::ScalarType dtype);
  // The same numbers, on the device and as far from an aligned address as asked.
  at::Tensor Place(const at::Tensor& tensor);
  // [a, b, c] in the memory of [b, a, c] by chance.
  at::Tensor Swapped(const at::Tensor& tensor);

 private:
  at::Tensor Transposed(const at::Tensor& tensor);

  std::mt19937 random_;
  const Placement placement_;
  int num_placed_ = 0;
};

struct Tables {
  Kernels kernels;
  worker::cuda::AttentionKernels attention;
};

using Outputs = std::vector<at::Tensor>;
using Case = std::function<Outputs(const Tables&, at::ScalarType dtype, Drawn)>;

Outputs RmsNormCase(const Tables& tables, at::ScalarType dtype, Drawn drawn);
Outputs SwigluCase(const Tables& tables, at::ScalarType dtype, Drawn drawn);
Outputs QkvForwardCase(const Tables& tables, at::ScalarType dtype, Drawn drawn);
Outputs QkvBackwardCase(const Tables& tables, at::ScalarType dtype, Drawn drawn);
Outputs EmbeddingCase(const Tables& tables, at::ScalarType dtype, Drawn drawn);
Outputs HeadForwardCase(const Tables& tables, at::ScalarType dtype, Drawn drawn);
Outputs HeadBackwardCase(const Tables& tables, at::ScalarType dtype, Drawn drawn);
Outputs LossCase(const Tables& tables, at::ScalarType dtype, Drawn drawn);
Outputs VectorNormCase(const Tables& tables, at::ScalarType dtype, Drawn drawn);
Outputs WordSumCase(const Tables& tables, at::ScalarType dtype, Drawn drawn);
Outputs NonfiniteCase(const Tables& tables, at::ScalarType dtype, Drawn drawn);
Outputs MergeCase(const Tables& tables, at::ScalarType dtype, Drawn drawn);
Outputs AddPartsCase(const Tables& tables, at::ScalarType dtype, Drawn drawn);

// How far the worst element is off, in units of what its output may be off by (Allowed): the outputs agree up to 1.
double WorstError(const Outputs& actual, const Outputs& expected);

// The entries of the composed tables.
Tables ComposedTables();

}  // namespace stemma::testing
