#include "common/model/model_fingerprint.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include "common/base/digest.h"
#include "common/base/file.h"
#include "common/base/status_macros.h"

namespace stemma {
namespace {

constexpr uint64_t kSampleBytes = 256;
constexpr uint64_t kSamples = 3;  // at the begin, in the middle, at the end

void AddText(const std::string& text, Sha256& digest) {
  digest.UpdateInteger(text.size());
  digest.Update(text);
}

absl::Status AddTensor(const RegularFile& file, const safetensors::TensorEntry& tensor, Sha256& digest) {
  AddText(tensor.name, digest);
  AddText(std::string(safetensors::DtypeName(tensor.dtype)), digest);
  digest.UpdateInteger(tensor.shape.size());
  for (const int64_t size : tensor.shape) digest.UpdateInteger(static_cast<uint64_t>(size));
  const uint64_t bytes = tensor.end - tensor.begin, sample = std::min(kSampleBytes, bytes);
  std::string read(sample, '\0');
  for (uint64_t n = 0; n < kSamples; ++n) {
    RETURN_IF_ERROR(file.ReadAt(tensor.begin + (bytes - sample) * n / (kSamples - 1), read.data(), sample));
    digest.Update(read);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> ModelFingerprint(const ModelDirectory& directory) {
  std::vector<RegularFile> files;
  std::map<std::string, std::pair<size_t, const safetensors::TensorEntry*>> tensors;  // by name
  for (const WeightFile& shard : directory.shards) {
    ASSIGN_OR_RETURN(RegularFile file, RegularFile::Open(shard.path));
    for (const safetensors::TensorEntry& tensor : shard.header.tensors) tensors[tensor.name] = {files.size(), &tensor};
    files.push_back(std::move(file));
  }
  Sha256 digest;
  for (const auto& [name, where] : tensors) {
    RETURN_IF_ERROR(AddTensor(files[where.first], *where.second, digest));
  }
  return digest.FinishHex();
}

}  // namespace stemma
