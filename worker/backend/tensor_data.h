// From LibTorch's tensors to the typed raw pointers of a backend's kernels. Private to worker/backend.
#pragma once

#include <ATen/core/Tensor.h>
#include <glog/logging.h>

#include <cstdint>
#include <type_traits>

namespace stemma::worker {

// A kernel's own 16-bit type is bf16: each backend's has its bits.
template <typename T>
constexpr at::ScalarType ScalarTypeOf() {
  if constexpr (std::is_floating_point_v<T> || std::is_same_v<T, int32_t> || std::is_same_v<T, int64_t>) {
    return c10::CppTypeToScalarType<T>::value;
  } else {
    static_assert(sizeof(T) == sizeof(at::BFloat16));
    return at::kBFloat16;
  }
}

// Returns the data of a tensor of this type, any strides; null if undefined.
template <typename T>
T* StridedData(const at::Tensor& tensor) {
  if (!tensor.defined()) return nullptr;
  CHECK(tensor.scalar_type() == ScalarTypeOf<std::remove_const_t<T>>())
      << "dtype " << c10::toString(tensor.scalar_type());
  return static_cast<T*>(tensor.data_ptr());
}

// Returns the data of a contiguous tensor of this type; null if undefined.
template <typename T>
T* Data(const at::Tensor& tensor) {
  if (tensor.defined()) CHECK(tensor.is_contiguous()) << "a contiguous tensor is needed";
  return StridedData<T>(tensor);
}

}  // namespace stemma::worker
