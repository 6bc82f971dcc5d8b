// Reads elements of one tensor of a safetensors file, part by part, and checks that each is finite. Called on the
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
#include "worker/model/file_pieces.h"

namespace stemma::worker {

// A tensor of a file that is open.
struct FileTensor {
  const std::string& path;
  const RegularFile& file;
  const safetensors::TensorEntry& entry;
};

// Errors: InvalidArgument - tensors of that dtype are not read.
absl::StatusOr<at::ScalarType> TorchDtype(safetensors::Dtype dtype);

// Returns element number `index` of a piece as its tensor's shape counts it, "[row, column]". `entry`: the tensor in
// the file of the piece's bytes.
std::string ElementText(const safetensors::TensorEntry& entry, const FilePiece& piece, int64_t index);

// InvalidArgument with the file, the tensor and `text`.
absl::Status TensorError(const FileTensor& tensor, const std::string& text);

struct ReadOptions {
  at::ScalarType held = at::kFloat;  // the run's dtype for these numbers, in which they must be finite as well
  const char* advice = "";           // ends the error where one is not: what they are, and what to do
};

// Calls store(first, values) with the elements of a piece, one part of at most 64 MiB after the other: host tensors in
// the file's dtype, flat, from element `first` of the parameter on. Only bytes of the piece are read. A part is stored
// before it is checked. Errors: InvalidArgument - a number is not finite, the dtype cannot be read, or the file is cut;
// the file system's.
absl::Status ReadTensor(const FileTensor& tensor, const FilePiece& piece, const ReadOptions& options,
                        const std::function<void(int64_t first, const at::Tensor& values)>& store);

}  // namespace stemma::worker
