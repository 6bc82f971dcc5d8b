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

constexpr int64_t kPartBytes = int64_t{64} << 20;  // read and converted at a time

// Checks the piece's elements from number `done` on: finite as the file has them (`read`) and as the run holds them.
absl::Status CheckFinite(const FileTensor& tensor, const FilePiece& piece, const ReadOptions& options, int64_t done,
                         const at::Tensor& read) {
  const int64_t bad = kernels::FirstNonfinite(read.to(AccType(options.held)).to(options.held));
  if (bad < 0) return absl::OkStatus();
  const double value = read[bad].item<double>();
  return TensorError(
      tensor, absl::StrCat("element ", ElementText(tensor.entry, piece, done + bad), " is ", value,
                           std::isfinite(value) ? ", which overflows in the run's dtype" : "", "; ", options.advice));
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

std::string ElementText(const safetensors::TensorEntry& entry, const FilePiece& piece, int64_t index) {
  const auto element_bytes = static_cast<uint64_t>(safetensors::DtypeBytes(entry.dtype));
  const uint64_t place = piece.bytes.PlaceOf(static_cast<uint64_t>(index) * element_bytes);
  auto element = static_cast<int64_t>((place - entry.begin) / element_bytes);
  std::vector<int64_t> axes(entry.shape.size());
  for (size_t d = axes.size(); d-- > 0; element /= entry.shape[d]) axes[d] = element % entry.shape[d];
  return absl::StrCat("[", absl::StrJoin(axes, ", "), "]");
}

absl::Status TensorError(const FileTensor& tensor, const std::string& text) {
  return absl::InvalidArgumentError(absl::StrCat(tensor.path, ": tensor \"", tensor.entry.name, "\": ", text));
}

absl::Status ReadTensor(const FileTensor& tensor, const FilePiece& piece, const ReadOptions& options,
                        const std::function<void(int64_t first, const at::Tensor& values)>& store) {
  const absl::StatusOr<at::ScalarType> dtype = TorchDtype(tensor.entry.dtype);
  if (!dtype.ok()) return TensorError(tensor, std::string(dtype.status().message()));
  const int64_t element_bytes = safetensors::DtypeBytes(tensor.entry.dtype), step = kPartBytes / element_bytes;
  for (int64_t done = 0; done < piece.count; done += step) {
    const at::Tensor values =
        at::empty({std::min(step, piece.count - done)}, at::TensorOptions(at::kCPU).dtype(*dtype));
    char* to = static_cast<char*>(values.data_ptr());
    RETURN_IF_ERROR(ForEachRun(
        piece.bytes, static_cast<uint64_t>(done * element_bytes), values.nbytes(),
        [&](uint64_t place, uint64_t read, uint64_t bytes) { return tensor.file.ReadAt(place, to + read, bytes); }));
    store(piece.begin + done, values);
    RETURN_IF_ERROR(CheckFinite(tensor, piece, options, done, values));
  }
  return absl::OkStatus();
}

}  // namespace stemma::worker
