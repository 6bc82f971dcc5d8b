// Division and rounding upwards, of numbers from 0 up.
#pragma once

namespace stemma {

// The least number of units that hold `value`; unit > 0.
template <typename T>
constexpr T DivideUp(T value, T unit) {
  return value / unit + (value % unit != 0 ? 1 : 0);
}

// The least multiple of `unit` that is not below `value`; unit > 0.
template <typename T>
constexpr T RoundUp(T value, T unit) {
  return DivideUp(value, unit) * unit;
}

}  // namespace stemma
