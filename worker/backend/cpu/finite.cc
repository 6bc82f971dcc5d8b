#include "worker/backend/cpu/finite.h"

#include <ATen/Parallel.h>
#include <glog/logging.h>

#include <algorithm>
#include <atomic>

namespace stemma::worker::kernels {
namespace {

// A task is worth a thread from about this many elements on.
constexpr int64_t kCheckedPerTask = 32768;

// A format of floating-point numbers by the bits of its exponent: all of them are set in infinities and NaNs alone.
template <typename T, T kExponentMask>
struct Format {
  using Bits = T;
  static constexpr T kMask = kExponentMask;
};
using Bf16 = Format<uint16_t, 0x7f80>;
using Fp32 = Format<uint32_t, 0x7f800000>;
using Fp64 = Format<uint64_t, 0x7ff0000000000000>;

// A loop that the compiler vectorises: no early end, one bit in one word.
template <typename F>
bool RangeIsFinite(const typename F::Bits* bits, int64_t begin, int64_t end) {
  using Bits = typename F::Bits;
  constexpr Bits kLowestOfExponent = F::kMask & (~F::kMask + 1);
  Bits carries = 0;  // into the sign bit, where an exponent of all ones carries
  for (int64_t i = begin; i < end; ++i) {
    carries = static_cast<Bits>(carries | static_cast<Bits>((bits[i] & F::kMask) + kLowestOfExponent));
  }
  return (carries >> (8 * sizeof(Bits) - 1)) == 0;
}

template <typename F>
bool IsFinite(const at::Tensor& values) {
  const auto* bits = static_cast<const typename F::Bits*>(values.const_data_ptr());
  std::atomic<bool> finite = true;
  at::parallel_for(0, values.numel(), kCheckedPerTask, [&](int64_t begin, int64_t end) {
    if (!RangeIsFinite<F>(bits, begin, end)) finite.store(false, std::memory_order_relaxed);
  });
  return finite;
}

template <typename F>
int64_t FirstOf(const at::Tensor& values) {
  const auto* bits = static_cast<const typename F::Bits*>(values.const_data_ptr());
  const auto* end = bits + values.numel();
  const auto* first = std::find_if(bits, end, [](auto b) { return (b & F::kMask) == F::kMask; });
  return first == end ? -1 : first - bits;
}

}  // namespace

bool AllFinite(const at::Tensor& values) {
  CHECK(values.is_contiguous());
  switch (values.scalar_type()) {
    case at::kBFloat16:
      return IsFinite<Bf16>(values);
    case at::kFloat:
      return IsFinite<Fp32>(values);
    case at::kDouble:
      return IsFinite<Fp64>(values);
    default:
      LOG(FATAL) << "not a dtype of weights or states: " << values.scalar_type();
  }
}

int64_t FirstNonfinite(const at::Tensor& values) {
  if (AllFinite(values)) return -1;
  switch (values.scalar_type()) {
    case at::kBFloat16:
      return FirstOf<Bf16>(values);
    case at::kFloat:
      return FirstOf<Fp32>(values);
    default:
      return FirstOf<Fp64>(values);
  }
}

}  // namespace stemma::worker::kernels
