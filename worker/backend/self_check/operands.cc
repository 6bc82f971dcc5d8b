#include "worker/backend/self_check/operands.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <glog/logging.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/round_up.h"
#include "worker/backend/accumulate_type.h"

namespace stemma::worker::self_check {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Elements: a wide load, or a tile of rows, ends in it.
constexpr int64_t kGuardAfterMin = 256;
// Elements: weights and sums begin at multiples of 16 elements in a run, and in allocations of their own.
constexpr int64_t kAlignedGuard = 64;

std::string Sizes(const at::Tensor& x) { return absl::StrCat("[", absl::StrJoin(x.sizes(), ", "), "]"); }

int64_t Product(at::IntArrayRef sizes) {
  int64_t product = 1;
  for (const int64_t size : sizes) product *= size;
  return product;
}

// Rows begin where a row of a taller tensor does: with odd widths at no boundary that wide loads need.
int64_t GuardBefore(at::IntArrayRef sizes, Numbers numbers) {
  if (numbers == Numbers::kAcc || (numbers == Numbers::kRun && sizes.size() == 1)) return kAlignedGuard;
  return Product(sizes.slice(1));
}

double ToleranceOf(Numbers numbers, const Tolerances& tolerances) {
  return numbers == Numbers::kRun ? tolerances.run : numbers == Numbers::kAcc ? tolerances.acc : tolerances.rows;
}

}  // namespace

bool Difference::IsWorseThan(const Difference& other) const {
  if (reason.empty() != other.reason.empty()) return !reason.empty();
  if (std::isinf(error) || std::isinf(other.error)) return error > other.error;
  const auto share = [](const Difference& x) { return x.tolerance > 0 ? x.error / x.tolerance : x.error; };
  return share(*this) > share(other);
}

Operands::Operands(const OperandsOptions& options)
    : options_(options), generator_(at::detail::createCPUGenerator(options.seed)) {}

at::Tensor Operands::Draw(at::IntArrayRef sizes) {
  return at::randn(sizes, generator_, at::TensorOptions(at::kCPU).dtype(at::kDouble));
}

at::Tensor Operands::DrawIntegers(int64_t high, int64_t count) {
  return at::randint(high, {count}, generator_, at::TensorOptions(at::kCPU).dtype(at::kLong));
}

at::ScalarType Operands::DtypeOf(Numbers numbers) const {
  if (numbers == Numbers::kRows) return kRowType;
  return numbers == Numbers::kRun ? options_.run_dtype : AccType(options_.run_dtype);
}

at::Tensor Operands::Guard(at::IntArrayRef sizes, Numbers numbers, Layout layout, int64_t row_quantum) {
  std::vector<int64_t> in_memory = sizes.vec();
  if (layout == Layout::kFirstTwoSwapped) std::swap(in_memory.at(0), in_memory.at(1));
  const int64_t width = in_memory.back();
  in_memory.back() = RoundUp(width, row_quantum);
  const int64_t count = Product(in_memory), begin = GuardBefore(in_memory, numbers);
  const int64_t after = std::max(2 * Product(at::IntArrayRef(in_memory).slice(1)), kGuardAfterMin);
  const at::ScalarType dtype = options_.is_reference ? at::kDouble : DtypeOf(numbers);
  const at::Tensor memory =
      at::full({begin + count + after}, kNan, at::TensorOptions().dtype(dtype).device(options_.device));
  const at::Tensor rows = memory.narrow(0, begin, count).view(in_memory);
  at::Tensor operand = rows.narrow(-1, 0, width);
  if (layout == Layout::kFirstTwoSwapped) operand = operand.transpose(0, 1);
  guarded_.push_back({memory, operand, rows.narrow(-1, width, in_memory.back() - width), begin, begin + count});
  return operand;
}

at::Tensor Operands::Rounded(const at::Tensor& values, Numbers numbers) const {
  return values.to(DtypeOf(numbers)).to(at::kDouble);
}

at::Tensor Operands::Normal(at::IntArrayRef sizes, Numbers numbers, double scale, Layout layout) {
  return Given(Draw(sizes) * scale, numbers, layout);
}

at::Tensor Operands::Given(const at::Tensor& values, Numbers numbers, Layout layout, int64_t row_quantum) {
  at::Tensor operand = Guard(values.sizes(), numbers, layout, row_quantum);
  operand.copy_(values.to(DtypeOf(numbers)));
  return operand;
}

// What stands around whole numbers are zeros: an index that a kernel reads there stays one of the table.
at::Tensor Operands::GivenIntegers(const at::Tensor& values) {
  const int64_t count = values.numel();
  const at::Tensor guarded =
      at::zeros({count + kGuardAfterMin + 1}, at::TensorOptions().dtype(at::kLong).device(options_.device));
  at::Tensor result = guarded.narrow(0, 1, count);
  result.copy_(values);
  return result;
}

at::Tensor Operands::Written(const std::string& name, at::IntArrayRef sizes, Numbers numbers, Layout layout,
                             int64_t row_quantum) {
  at::Tensor operand = Guard(sizes, numbers, layout, row_quantum);
  Compare(name, operand, numbers);
  return operand;
}

at::Tensor Operands::AddedTo(const std::string& name, at::IntArrayRef sizes, Numbers numbers, double scale,
                             double floor) {
  at::Tensor operand = Normal(sizes, numbers, scale);
  Compare(name, operand, numbers, floor);
  return operand;
}

void Operands::Compare(const std::string& name, const at::Tensor& result, Numbers numbers, double floor) {
  results_.push_back({.name = name, .tensor = result, .numbers = numbers, .floor = floor});
}

void Operands::SpoilFreeMemory(const std::vector<std::vector<int64_t>>& sizes, Numbers numbers) const {
  std::vector<at::Tensor> spoiled;
  for (const std::vector<int64_t>& one : sizes) {
    spoiled.push_back(at::full(one, kNan, at::TensorOptions().dtype(DtypeOf(numbers)).device(options_.device)));
  }
}

bool Operands::IsWhole(const Guarded& guarded) {
  const at::Tensor nans = guarded.memory.isnan();
  return nans.narrow(0, 0, guarded.begin).all().item<bool>() &&
         nans.narrow(0, guarded.end, nans.numel() - guarded.end).all().item<bool>() &&
         (guarded.between_rows.numel() == 0 || guarded.between_rows.isnan().all().item<bool>());
}

void Operands::Fetch() {
  for (Result& result : results_) result.host = result.tensor.to(at::kCPU).to(at::kDouble).contiguous();
  for (const Guarded& guarded : guarded_) {
    if (!IsWhole(guarded)) written_outside_ = Sizes(guarded.operand);
  }
}

Difference Operands::CompareWith(const Operands& reference, const Tolerances& tolerances) const {
  CHECK_EQ(results_.size(), reference.results_.size());
  Difference worst;
  if (!written_outside_.empty()) {
    worst = {.error = kInfinity,
             .tolerance = 0,
             .reason = absl::StrCat("writes outside of an operand of ", written_outside_)};
  }
  for (size_t i = 0; i < results_.size(); ++i) {
    Difference difference = CompareOne(results_[i], reference.results_[i], tolerances);
    if (difference.IsWorseThan(worst)) worst = std::move(difference);
  }
  return worst;
}

Difference Operands::CompareOne(const Result& result, const Result& expected, const Tolerances& tolerances) {
  CHECK_EQ(result.name, expected.name);
  Difference difference{.error = 0, .tolerance = ToleranceOf(result.numbers, tolerances), .reason = {}};
  const auto refuse = [&](double error, const std::string& reason) {
    difference.error = error;
    difference.reason = absl::StrCat(result.name, " ", reason);
    return difference;
  };
  const at::Tensor &a = result.host, &b = expected.host;
  if (a.sizes() != b.sizes()) return refuse(kInfinity, absl::StrCat("is ", Sizes(a), ", not ", Sizes(b)));
  if (b.numel() == 0) return difference;
  const double size =
      std::max({b.square().mean().sqrt().item<double>(), expected.floor, std::numeric_limits<double>::min()});
  const at::Tensor errors = ((a - b).abs() / (b.abs() + size)).flatten();
  const at::Tensor bad = errors.isfinite().logical_not();
  if (bad.any().item<bool>()) {
    return refuse(kInfinity, absl::StrCat("is not finite at element ", bad.to(at::kByte).argmax().item<int64_t>(),
                                          " of ", Sizes(a), ": not written, or made of what is outside of an operand"));
  }
  difference.error = errors.max().item<double>();
  if (difference.error > difference.tolerance) {
    return refuse(difference.error,
                  absl::StrCat("is off by ", difference.error, " at element ", errors.argmax().item<int64_t>(), " of ",
                               Sizes(a), ", at most ", difference.tolerance, " is taken"));
  }
  if (tolerances.whole == 0 || result.numbers == Numbers::kRows) return difference;
  const double whole = (a - b).square().mean().sqrt().item<double>() / size;
  if (whole > tolerances.whole) {
    difference.tolerance = tolerances.whole;
    return refuse(whole, absl::StrCat("is off by ", whole, " as a whole, at most ", tolerances.whole, " is taken"));
  }
  const Difference of_whole{.error = whole, .tolerance = tolerances.whole, .reason = {}};
  return of_whole.IsWorseThan(difference) ? of_whole : difference;
}

}  // namespace stemma::worker::self_check
