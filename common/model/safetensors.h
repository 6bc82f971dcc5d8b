// The safetensors format, torch-free: parses headers of files that nobody vouches for, and writes files. Every size
// that a file claims is checked before anything is allocated by it.
//
// Data offsets in TensorEntry are absolute in the file. Errors: InvalidArgument naming the file and what is wrong.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace stemma::safetensors {

enum class Dtype { kBool, kU8, kI8, kI16, kU16, kI32, kU32, kI64, kU64, kF16, kBF16, kF32, kF64, kF8E4M3, kF8E5M2 };

std::string_view DtypeName(Dtype dtype);  // "F32", "BF16", ... as in the header
int64_t DtypeBytes(Dtype dtype);

struct TensorEntry {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape = {};
  uint64_t begin = 0;  // absolute in the file
  uint64_t end = 0;
};

struct Header {
  std::vector<TensorEntry> tensors;             // in offset order
  std::map<std::string, std::string> metadata;  // __metadata__
  std::string raw;                              // the header's JSON as it stands in the file, padding included
};

// `prefix` is the first min(file_bytes, 8 + header length) bytes of the file.
absl::StatusOr<Header> ParseHeader(std::string_view prefix, uint64_t file_bytes);

// Reads and parses the header of a regular file.
absl::StatusOr<Header> ReadHeader(const std::string& path);

// The 8-byte length and the JSON header for these tensors, whose begin/end are set by this call (absolute, packed in
// the given order). Padded with spaces so that data is 8-byte aligned.
std::string MakeHeader(std::vector<TensorEntry>& tensors, const std::map<std::string, std::string>& metadata);

}  // namespace stemma::safetensors
