// Cases of word_sum: parts of a matrix, of each size of words. Both sides have the same words.
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>

#include "absl/strings/str_cat.h"
#include "worker/backend/self_check/cases.h"

namespace stemma::worker::self_check {
namespace {

struct WordShape {
  int64_t first = 0, count = 0, columns = 0;
};

constexpr WordShape kWordShapes[] = {{0, 1, 1},       {0, 1003, 1003},   {0, 4096, 64},       {8, 65536, 512},
                                     {3, 70000, 333}, {0, 300000, 4096}, {100, 100003, 28672}};

void RunWordSum(const Side& side, Operands& operands, const WordShape& shape, at::ScalarType dtype) {
  const bool is_bf16 = dtype == at::kBFloat16;
  // What lies behind the last word counts where it is read.
  const at::Tensor drawn =
      operands.GivenIntegers(operands.DrawIntegers(int64_t{1} << (is_bf16 ? 16 : 31), shape.count + 8));
  const at::Tensor words = drawn.to(is_bf16 ? at::kShort : at::kInt).view(dtype).narrow(0, 0, shape.count);
  const at::Tensor sum = at::full({}, -1, drawn.options());
  side.kernels.word_sum(
      {.values = words, .first = shape.first, .columns = shape.columns, .row_begin = 5, .column_begin = 7, .sum = sum});
  // fp64 holds a quarter of it.
  std::vector<at::Tensor> quarters;
  for (const int shift : {0, 16, 32, 48}) quarters.push_back(sum.bitwise_right_shift(shift).bitwise_and(0xffff));
  operands.Compare("sum", at::stack(quarters).to(at::kDouble), Numbers::kRows);
}

}  // namespace

std::vector<Case> WordSumCases(const CheckShape&) {
  std::vector<Case> cases;
  for (const WordShape& shape : kWordShapes) {
    for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat}) {
      cases.push_back({absl::StrCat(shape.count, " words in rows of ", shape.columns),
                       [=](const Side& side, Operands& operands) { RunWordSum(side, operands, shape, dtype); }});
    }
  }
  return cases;
}

}  // namespace stemma::worker::self_check
