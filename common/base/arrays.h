// Views of the little-endian arrays that requests carry as `bytes`: int32 tokens, float32 (or float64) numbers, masks
// as packed bits, least significant first. Elements are copied out: the bytes need no alignment.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace stemma {

static_assert(std::endian::native == std::endian::little, "arrays are little-endian on the wire");

// Bytes beyond the last whole element are not seen: CheckArraySize finds them.
template <typename T>
class ArrayView {
 public:
  explicit ArrayView(std::string_view bytes) : bytes_(bytes) {}

  int64_t size() const { return static_cast<int64_t>(bytes_.size() / sizeof(T)); }
  bool empty() const { return size() == 0; }
  T operator[](int64_t index) const {
    T value;
    std::memcpy(&value, bytes_.data() + index * sizeof(T), sizeof(T));
    return value;
  }
  std::vector<T> ToVector() const {
    std::vector<T> values(static_cast<size_t>(size()));
    if (!values.empty()) std::memcpy(values.data(), bytes_.data(), values.size() * sizeof(T));
    return values;
  }

 private:
  std::string_view bytes_;
};

using TokenArray = ArrayView<int32_t>;
using FloatArray = ArrayView<float>;
using DoubleArray = ArrayView<double>;

// `size` bits; empty bytes are all ones.
class MaskView {
 public:
  MaskView(std::string_view bytes, int64_t size) : bytes_(bytes), size_(size) {}

  int64_t size() const { return size_; }
  bool operator[](int64_t index) const {
    return bytes_.empty() ||
           (static_cast<unsigned char>(bytes_[static_cast<size_t>(index / 8)]) >> (index % 8) & 1) != 0;
  }
  int64_t CountOnes() const {
    if (bytes_.empty()) return size_;
    int64_t ones = 0;
    for (const char byte : bytes_) ones += std::popcount(static_cast<unsigned char>(byte));
    return ones;
  }

 private:
  std::string_view bytes_;
  int64_t size_;
};

template <typename T>
std::string PackArray(std::span<const T> values) {
  std::string bytes(values.size_bytes(), '\0');
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}
template <typename T>
std::string PackArray(const std::vector<T>& values) {
  return PackArray(std::span<const T>(values));
}

inline std::string PackMask(const std::vector<bool>& bits) {
  std::string bytes((bits.size() + 7) / 8, '\0');
  for (size_t i = 0; i < bits.size(); ++i) {
    if (bits[i]) bytes[i / 8] = static_cast<char>(static_cast<unsigned char>(bytes[i / 8]) | 1u << (i % 8));
  }
  return bytes;
}

// Errors: InvalidArgument without the field, which the caller knows.
inline absl::Status CheckArraySize(std::string_view bytes, int64_t size, size_t element_bytes) {
  if (bytes.size() % element_bytes == 0 && bytes.size() / element_bytes == static_cast<size_t>(size)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("has ", bytes.size(), " bytes, must have ", size, " elements of ", element_bytes, " bytes"));
}

// Empty is allowed; bits beyond `size` must be zero, so that CountOnes may count whole bytes.
inline absl::Status CheckMask(std::string_view bytes, int64_t size) {
  if (bytes.empty()) return absl::OkStatus();
  if (bytes.size() != static_cast<size_t>((size + 7) / 8)) {
    return absl::InvalidArgumentError(
        absl::StrCat("has ", bytes.size(), " bytes, must have ", (size + 7) / 8, " for ", size, " bits"));
  }
  if (size % 8 != 0 && static_cast<unsigned char>(bytes.back()) >> (size % 8) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("has bits set beyond the ", size, " of the response"));
  }
  return absl::OkStatus();
}

}  // namespace stemma
