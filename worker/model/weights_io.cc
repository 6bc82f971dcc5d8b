#include "worker/model/weights_io.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/dtype_names.h"
#include "common/base/file.h"
#include "common/base/status_macros.h"
#include "worker/backend/accumulate_type.h"
#include "worker/backend/cpu/finite.h"
#include "worker/optim/shards.h"
#include "worker/optim/states.h"

namespace stemma::worker {
namespace {

using safetensors::Dtype;

constexpr int64_t kPieceBytes = int64_t{64} << 20;  // read and converted at a time

// Calls fn(first, number) over pieces of so many elements, or rows.
template <typename Fn>
absl::Status ForPieces(int64_t count, int64_t bytes_of_one, const Fn& fn) {
  const int64_t step = std::max<int64_t>(kPieceBytes / bytes_of_one, 1);
  for (int64_t begin = 0; begin < count; begin += step) {
    RETURN_IF_ERROR(fn(begin, std::min(step, count - begin)));
  }
  return absl::OkStatus();
}

// Element `index` of a tensor as [row, column], the way its shape counts.
std::string ElementText(const safetensors::TensorEntry& entry, int64_t index) {
  std::vector<int64_t> place(entry.shape.size());
  for (size_t d = entry.shape.size(); d-- > 0; index /= entry.shape[d]) place[d] = index % entry.shape[d];
  return absl::StrCat("[", absl::StrJoin(place, ", "), "]");
}

// A tensor that is read: where it stands and where it goes.
struct LoadedTensor {
  const std::string& path;
  const RegularFile& file;
  const safetensors::TensorEntry& entry;
  const Weights& weights;
  const HfTensor& place;  // in the weights

  int64_t columns() const { return entry.shape.size() > 1 ? entry.shape[1] : 1; }
};

absl::Status TensorError(const LoadedTensor& tensor, const std::string& text) {
  return absl::InvalidArgumentError(absl::StrCat(tensor.path, ": tensor \"", tensor.entry.name, "\": ", text));
}

// Checks elements from `begin` on: finite as the file has them (`read`) and as the run holds them.
absl::Status CheckFinite(const LoadedTensor& tensor, int64_t begin, const at::Tensor& read, const at::Tensor& held) {
  const int64_t bad = kernels::FirstNonfinite(held);
  if (bad < 0) return absl::OkStatus();
  const double value = read[bad].item<double>();
  return TensorError(tensor,
                     absl::StrCat("element ", ElementText(tensor.entry, begin + bad), " is ", value,
                                  std::isfinite(value) ? ", which overflows in the run's dtype" : "",
                                  "; weights must be finite: write the model again from a checkpoint that is sound"));
}

absl::Status LoadTensor(const LoadedTensor& tensor) {
  const absl::StatusOr<at::ScalarType> dtype = TorchDtype(tensor.entry.dtype);
  if (!dtype.ok()) return TensorError(tensor, std::string(dtype.status().message()));
  const int64_t columns = tensor.columns(), row_bytes = columns * safetensors::DtypeBytes(tensor.entry.dtype);
  const TensorBox& box = tensor.place.box;
  const at::ScalarType run_dtype = tensor.weights.run_dtype;
  // Whole rows are read, also where the box has some of their columns only: one read a piece.
  return ForPieces(box.rows(), row_bytes, [&](int64_t begin, int64_t count) -> absl::Status {
    const int64_t first_row = box.row_begin + begin;
    const at::Tensor rows = at::empty({count, columns}, at::TensorOptions(at::kCPU).dtype(*dtype));
    RETURN_IF_ERROR(tensor.file.ReadAt(tensor.entry.begin + static_cast<uint64_t>(first_row * row_bytes),
                                       rows.data_ptr(), static_cast<uint64_t>(count * row_bytes)));
    tensor.weights.StoreRows(tensor.place, begin, rows.slice(1, box.column_begin, box.column_end));
    const at::Tensor read = rows.view({-1});
    return CheckFinite(tensor, first_row * columns, read, read.to(AccType(run_dtype)).to(run_dtype));
  });
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

absl::StatusOr<at::ScalarType> ParseRunDtype(const std::string& name) {
  const std::optional<RunDtype> dtype = FindRunDtype(name);
  if (dtype == RunDtype::kFp32) return at::kFloat;
  if (dtype == RunDtype::kFp64) return at::kDouble;
  if (dtype == RunDtype::kBf16) return at::kBFloat16;
  return absl::InvalidArgumentError("dtype: '" + name + "' is not one of fp32, fp64, bf16");
}

absl::StatusOr<Weights> LoadWeights(const ModelDirectory& directory, const ModelShard& shard, at::ScalarType run_dtype,
                                    at::Device device, const StateOptions& states) {
  Weights weights = MakeWeights(shard, run_dtype, device);
  const OptimizerShards shards(ElementsOf(weights.parameters), states.ranks);
  RETURN_IF_ERROR(MakeStates(weights.parameters, states.residency, shards.owned(states.rank)));
  std::unordered_map<std::string, const HfTensor*> wanted;
  for (const HfTensor& t : weights.hf_tensors) wanted[t.name] = &t;
  for (const WeightFile& weight_file : directory.shards) {
    ASSIGN_OR_RETURN(const RegularFile file, RegularFile::Open(weight_file.path));
    for (const safetensors::TensorEntry& entry : weight_file.header.tensors) {
      const auto it = wanted.find(entry.name);
      if (it == wanted.end()) continue;
      const HfTensor& tensor = *it->second;
      RETURN_IF_ERROR(LoadTensor({weight_file.path, file, entry, weights, tensor}));
      wanted.erase(it);
    }
  }
  if (!wanted.empty()) {
    return absl::InvalidArgumentError(directory.path + ": tensor " + wanted.begin()->first + " is missing");
  }
  return weights;
}

}  // namespace stemma::worker
