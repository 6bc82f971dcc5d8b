// Reads elements of one tensor of a safetensors file, piece by piece, and checks that each is finite. Called on the
// engine thread where weights and optimizer states are loaded.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/file.h"
#include "common/model/safetensors.h"

namespace stemma::worker {

// A tensor of a file that is open.
struct FileTensor {
  const std::string& path;
  const RegularFile& file;
  const safetensors::TensorEntry& entry;

  // Returns the elements of one row; a vector's rows have one.
  int64_t columns() const { return entry.shape.size() > 1 ? entry.shape[1] : 1; }
};

// Errors: InvalidArgument - tensors of that dtype are not read.
absl::StatusOr<at::ScalarType> TorchDtype(safetensors::Dtype dtype);

// InvalidArgument with the file, the tensor and `text`.
absl::Status TensorError(const FileTensor& tensor, const std::string& text);

struct ReadRange {
  int64_t begin = 0, count = 0;      // elements of the tensor, row by row
  int64_t unit = 1;                  // each piece but the last one is a multiple of it
  at::ScalarType held = at::kFloat;  // the run's dtype for these numbers, in which they must be finite as well
  const char* advice = "";           // ends the error where one is not: what they are, and what to do
};

// Calls store(first, values) with consecutive pieces: host tensors in the file's dtype, flat, from element `first` on.
// A piece is stored before it is checked. Errors: InvalidArgument - a number is not finite, the dtype cannot be read,
// or the file is cut; the file system's.
absl::Status ReadTensor(const FileTensor& tensor, const ReadRange& range,
                        const std::function<void(int64_t first, const at::Tensor& values)>& store);

}  // namespace stemma::worker
