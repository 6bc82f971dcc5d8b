#include "common/model/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/file.h"
#include "common/base/json.h"
#include "common/base/status_macros.h"

namespace stemma::safetensors {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "lengths and data are little-endian in the file");

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr size_t kMaxRank = 64;
constexpr JsonLimits kHeaderLimits{.max_depth = 4, .max_values = 20'000'000};

struct DtypeInfo {
  Dtype dtype;
  std::string_view name;
  int64_t bytes;
};
constexpr std::array<DtypeInfo, 15> kDtypes = {{{Dtype::kBool, "BOOL", 1},
                                                {Dtype::kU8, "U8", 1},
                                                {Dtype::kI8, "I8", 1},
                                                {Dtype::kI16, "I16", 2},
                                                {Dtype::kU16, "U16", 2},
                                                {Dtype::kI32, "I32", 4},
                                                {Dtype::kU32, "U32", 4},
                                                {Dtype::kI64, "I64", 8},
                                                {Dtype::kU64, "U64", 8},
                                                {Dtype::kF16, "F16", 2},
                                                {Dtype::kBF16, "BF16", 2},
                                                {Dtype::kF32, "F32", 4},
                                                {Dtype::kF64, "F64", 8},
                                                {Dtype::kF8E4M3, "F8_E4M3", 1},
                                                {Dtype::kF8E5M2, "F8_E5M2", 1}}};

absl::Status Invalid(const std::string& message) { return absl::InvalidArgumentError(message); }

absl::Status InvalidTensor(const std::string& name, const std::string& message) {
  return Invalid(absl::StrCat("tensor ", JsonExcerpt(name), ": ", message));
}

// Where git-lfs keeps a file elsewhere, a text of three lines stands in its place.
constexpr std::string_view kLfsBegin = "version https://git-lfs";
constexpr uint64_t kLfsBytesMax = 1024;

absl::Status LfsPointerError(std::string_view text) {
  const size_t size = text.find("\nsize ");
  std::string real;
  if (size != std::string_view::npos) {
    real = text.substr(size + 6, text.find('\n', size + 1) - size - 6);
    real = absl::StrCat(" of ", real, " bytes");
  }
  return Invalid(absl::StrCat("is a git-lfs pointer, not the file", real,
                              " that it stands for: run `git lfs pull` in the model's repository"));
}

absl::StatusOr<uint64_t> HeaderBytes(std::string_view prefix, uint64_t file_bytes) {
  if (file_bytes < kLengthBytes || prefix.size() < kLengthBytes) {
    return Invalid(absl::StrCat("the file has ", file_bytes, " bytes; a safetensors file has at least 8"));
  }
  uint64_t header_bytes;
  std::memcpy(&header_bytes, prefix.data(), kLengthBytes);
  if (header_bytes > kMaxHeaderBytes) {
    return Invalid(absl::StrCat("header length ", header_bytes, " is above the format's limit of ", kMaxHeaderBytes));
  }
  if (header_bytes > file_bytes - kLengthBytes) {
    return Invalid(absl::StrCat("header length ", header_bytes, " does not fit in the file of ", file_bytes, " bytes"));
  }
  return header_bytes;
}

absl::StatusOr<Dtype> ParseDtype(const std::string& tensor, const json& entry) {
  const auto it = entry.find("dtype");
  if (it == entry.end()) return InvalidTensor(tensor, "dtype is missing");
  for (const DtypeInfo& info : kDtypes) {
    if (it->is_string() && it->get_ref<const std::string&>() == info.name) return info.dtype;
  }
  return InvalidTensor(tensor, absl::StrCat("dtype ", JsonExcerpt(*it), " is unknown"));
}

absl::StatusOr<std::vector<int64_t>> ParseShape(const std::string& tensor, const json& entry) {
  const auto it = entry.find("shape");
  if (it == entry.end()) return InvalidTensor(tensor, "shape is missing");
  if (!it->is_array()) return InvalidTensor(tensor, "shape is not a list");
  if (it->size() > kMaxRank) return InvalidTensor(tensor, absl::StrCat("shape has ", it->size(), " dimensions"));
  std::vector<int64_t> shape;
  for (const json& size : *it) {
    if (!size.is_number_unsigned() || size.get<uint64_t>() > uint64_t{INT64_MAX}) {
      return InvalidTensor(tensor, absl::StrCat("shape has ", JsonExcerpt(size), ", not a plain unsigned integer"));
    }
    shape.push_back(static_cast<int64_t>(size.get<uint64_t>()));
  }
  return shape;
}

absl::StatusOr<std::pair<uint64_t, uint64_t>> ParseOffsets(const std::string& tensor, const json& entry) {
  const auto it = entry.find("data_offsets");
  if (it == entry.end()) return InvalidTensor(tensor, "data_offsets is missing");
  if (!it->is_array() || it->size() != 2 || !(*it)[0].is_number_unsigned() || !(*it)[1].is_number_unsigned()) {
    return InvalidTensor(tensor, "data_offsets is not two plain unsigned integers");
  }
  return std::pair((*it)[0].get<uint64_t>(), (*it)[1].get<uint64_t>());
}

// Bytes of the tensor's data; nothing when the product overflows.
std::optional<uint64_t> DataBytes(const std::vector<int64_t>& shape, Dtype dtype) {
  uint64_t bytes = static_cast<uint64_t>(DtypeBytes(dtype));
  for (const int64_t size : shape) {
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(size), &bytes)) return std::nullopt;
  }
  return bytes;
}

// Offsets as in the file: relative to the end of the header.
absl::StatusOr<TensorEntry> ParseTensor(const std::string& name, const json& value) {
  if (!value.is_object()) return InvalidTensor(name, "its entry is not an object");
  for (const auto& [key, unused] : value.items()) {
    if (key != "dtype" && key != "shape" && key != "data_offsets") {
      return InvalidTensor(name, absl::StrCat("field ", JsonExcerpt(key), " is unknown"));
    }
  }
  TensorEntry entry;
  entry.name = name;
  ASSIGN_OR_RETURN(entry.dtype, ParseDtype(name, value));
  ASSIGN_OR_RETURN(entry.shape, ParseShape(name, value));
  ASSIGN_OR_RETURN(const auto offsets, ParseOffsets(name, value));
  std::tie(entry.begin, entry.end) = offsets;
  const std::optional<uint64_t> bytes = DataBytes(entry.shape, entry.dtype);
  if (!bytes) return InvalidTensor(name, absl::StrCat("shape [", absl::StrJoin(entry.shape, ","), "] overflows"));
  if (entry.end < entry.begin) {
    return InvalidTensor(name, absl::StrCat("data_offsets end ", entry.end, " is before begin ", entry.begin));
  }
  if (entry.end - entry.begin != *bytes) {
    return InvalidTensor(
        name, absl::StrCat("data_offsets span ", entry.end - entry.begin, " bytes, its shape and dtype ", *bytes));
  }
  return entry;
}

absl::StatusOr<std::map<std::string, std::string>> ParseMetadata(const json& value) {
  if (!value.is_object()) return Invalid("__metadata__ is not an object");
  std::map<std::string, std::string> metadata;
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) {
      return Invalid(absl::StrCat("__metadata__ ", JsonExcerpt(key), " is ", JsonTypeName(text), ", not a string"));
    }
    metadata[key] = text.get<std::string>();
  }
  return metadata;
}

// Tensors in offset order cover the data area from its begin to its end, without holes or overlaps.
absl::Status CheckLayout(const std::vector<TensorEntry>& tensors, uint64_t data_bytes) {
  uint64_t end = 0;
  for (const TensorEntry& tensor : tensors) {
    if (tensor.begin != end) {
      return InvalidTensor(tensor.name, absl::StrCat("data begins at ", tensor.begin, ", the tensor before it ends at ",
                                                     end, tensor.begin < end ? " (overlap)" : " (hole)"));
    }
    end = tensor.end;
  }
  if (end != data_bytes) {
    return Invalid(absl::StrCat("tensors end at ", end, ", the file's data at ", data_bytes,
                                end < data_bytes ? " (trailing data)" : " (truncated)"));
  }
  return absl::OkStatus();
}

}  // namespace

std::string_view DtypeName(Dtype dtype) { return kDtypes[static_cast<size_t>(dtype)].name; }
int64_t DtypeBytes(Dtype dtype) { return kDtypes[static_cast<size_t>(dtype)].bytes; }

absl::StatusOr<Header> ParseHeader(std::string_view prefix, uint64_t file_bytes) {
  ASSIGN_OR_RETURN(const uint64_t header_bytes, HeaderBytes(prefix, file_bytes));
  if (prefix.size() < kLengthBytes + header_bytes) return Invalid("the header is cut");
  Header header;
  header.raw = std::string(prefix.substr(kLengthBytes, header_bytes));
  if (header.raw.empty() || header.raw[0] != '{') return Invalid("the header does not begin with '{'");
  absl::StatusOr<json> root = ParseJson(header.raw, kHeaderLimits);
  if (!root.ok()) return Invalid(absl::StrCat("header: ", root.status().message()));
  for (const auto& [name, value] : root->items()) {
    if (name == "__metadata__") {
      ASSIGN_OR_RETURN(header.metadata, ParseMetadata(value));
      continue;
    }
    ASSIGN_OR_RETURN(TensorEntry entry, ParseTensor(name, value));
    header.tensors.push_back(std::move(entry));
  }
  std::stable_sort(header.tensors.begin(), header.tensors.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
  });
  const uint64_t data_begin = kLengthBytes + header_bytes;
  RETURN_IF_ERROR(CheckLayout(header.tensors, file_bytes - data_begin));
  for (TensorEntry& tensor : header.tensors) {
    tensor.begin += data_begin;
    tensor.end += data_begin;
  }
  return header;
}

absl::StatusOr<Header> ReadHeader(const std::string& path) {
  ASSIGN_OR_RETURN(RegularFile file, RegularFile::Open(path));
  std::string prefix(std::min(kLfsBytesMax, file.bytes()), '\0');
  RETURN_IF_ERROR(file.ReadAt(0, prefix.data(), prefix.size()));
  if (file.bytes() <= kLfsBytesMax && prefix.starts_with(kLfsBegin)) {
    return Invalid(absl::StrCat(path, " ", LfsPointerError(prefix).message()));
  }
  prefix.resize(std::min<uint64_t>(kLengthBytes, file.bytes()));
  const absl::StatusOr<uint64_t> header_bytes = HeaderBytes(prefix, file.bytes());
  if (!header_bytes.ok()) return Invalid(absl::StrCat(path, ": ", header_bytes.status().message()));
  prefix.resize(kLengthBytes + *header_bytes);
  RETURN_IF_ERROR(file.ReadAt(0, prefix.data(), prefix.size()));
  absl::StatusOr<Header> header = ParseHeader(prefix, file.bytes());
  if (!header.ok()) return Invalid(absl::StrCat(path, ": ", header.status().message()));
  return header;
}

std::string MakeHeader(std::vector<TensorEntry>& tensors, const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json root = nlohmann::ordered_json::object();
  if (!metadata.empty()) root["__metadata__"] = metadata;
  uint64_t end = 0;
  for (TensorEntry& tensor : tensors) {
    tensor.begin = end;
    end += DataBytes(tensor.shape, tensor.dtype).value();
    tensor.end = end;
    root[tensor.name] = {
        {"dtype", DtypeName(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {tensor.begin, tensor.end}}};
  }
  std::string text = root.dump();
  text.append((kLengthBytes - text.size() % kLengthBytes) % kLengthBytes, ' ');
  const uint64_t header_bytes = text.size();
  std::string result(kLengthBytes, '\0');
  std::memcpy(result.data(), &header_bytes, kLengthBytes);
  result += text;
  for (TensorEntry& tensor : tensors) {
    tensor.begin += result.size();
    tensor.end += result.size();
  }
  return result;
}

}  // namespace stemma::safetensors
