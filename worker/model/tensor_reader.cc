#include "worker/model/tensor_reader.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "worker/backend/accumulate_type.h"
#include "worker/backend/cpu/finite.h"

namespace stemma::worker {
namespace {

using safetensors::Dtype;

constexpr int64_t kPieceBytes = int64_t{64} << 20;  // read and converted at a time

// Element `index` of a tensor as [row, column], the way its shape counts.
std::string ElementText(const safetensors::TensorEntry& entry, int64_t index) {
  std::vector<int64_t> place(entry.shape.size());
  for (size_t d = entry.shape.size(); d-- > 0; index /= entry.shape[d]) place[d] = index % entry.shape[d];
  return absl::StrCat("[", absl::StrJoin(place, ", "), "]");
}

// Checks elements from `first` on: finite as the file has them (`read`) and as the run holds them.
absl::Status CheckFinite(const FileTensor& tensor, const ReadRange& range, int64_t first, const at::Tensor& read) {
  const int64_t bad = kernels::FirstNonfinite(read.to(AccType(range.held)).to(range.held));
  if (bad < 0) return absl::OkStatus();
  const double value = read[bad].item<double>();
  return TensorError(
      tensor, absl::StrCat("element ", ElementText(tensor.entry, first + bad), " is ", value,
                           std::isfinite(value) ? ", which overflows in the run's dtype" : "", "; ", range.advice));
}

}  // namespace

absl::StatusOr<at::ScalarType> TorchDtype(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF16:
      return at::kHalf;
    case Dtype::kBF16:
      return at::kBFloat16;
    case Dtype::kF32:
      return at::kFloat;
    case Dtype::kF64:
      return at::kDouble;
    default:
      return absl::InvalidArgumentError("weights of dtype " + std::string(safetensors::DtypeName(dtype)) +
                                        " are not supported: F16, BF16, F32, F64 are");
  }
}

absl::Status TensorError(const FileTensor& tensor, const std::string& text) {
  return absl::InvalidArgumentError(absl::StrCat(tensor.path, ": tensor \"", tensor.entry.name, "\": ", text));
}

absl::Status ReadTensor(const FileTensor& tensor, const ReadRange& range,
                        const std::function<void(int64_t first, const at::Tensor& values)>& store) {
  const absl::StatusOr<at::ScalarType> dtype = TorchDtype(tensor.entry.dtype);
  if (!dtype.ok()) return TensorError(tensor, std::string(dtype.status().message()));
  const int64_t element_bytes = safetensors::DtypeBytes(tensor.entry.dtype);
  const int64_t step = std::max<int64_t>(kPieceBytes / (range.unit * element_bytes), 1) * range.unit;
  for (int64_t done = 0; done < range.count; done += step) {
    const int64_t first = range.begin + done, count = std::min(step, range.count - done);
    const at::Tensor values = at::empty({count}, at::TensorOptions(at::kCPU).dtype(*dtype));
    RETURN_IF_ERROR(tensor.file.ReadAt(tensor.entry.begin + static_cast<uint64_t>(first * element_bytes),
                                       values.data_ptr(), static_cast<uint64_t>(count * element_bytes)));
    store(first, values);
    RETURN_IF_ERROR(CheckFinite(tensor, range, first, values));
  }
  return absl::OkStatus();
}

}  // namespace stemma::worker
