// The header of a safetensors file: refused, or its tensors cover the file's data and are written back as they were
// read.
#include <algorithm>
#include <string>
#include <vector>

#include "common/model/safetensors.h"
#include "glog/logging.h"
#include "tests/fuzz/fuzz_target.h"

namespace stemma::fuzz {

std::vector<std::string> Seeds() {
  using enum safetensors::Dtype;
  std::vector<safetensors::TensorEntry> tensors = {{.name = "a", .dtype = kF32, .shape = {2, 3}},
                                                   {.name = "b", .dtype = kBF16, .shape = {4}},
                                                   {.name = "c", .dtype = kU8, .shape = {}},
                                                   {.name = "d", .dtype = kI64, .shape = {0, 5}}};
  std::vector<safetensors::TensorEntry> none;
  return {safetensors::MakeHeader(tensors, {{"format", "pt"}}) + std::string(33, 'x'),
          safetensors::MakeHeader(none, {}), safetensors::MakeHeader(none, {{"a", "\"\\\n"}})};
}

}  // namespace stemma::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stemma::safetensors;
  const auto header = ParseHeader({reinterpret_cast<const char*>(data), size}, size);
  if (!header.ok()) return 0;
  uint64_t end = 8 + header->raw.size();
  for (const TensorEntry& tensor : header->tensors) {
    CHECK_EQ(tensor.begin, end) << tensor.name;
    CHECK_LE(tensor.begin, tensor.end) << tensor.name;
    end = tensor.end;
  }
  CHECK_EQ(end, size);
  std::vector<TensorEntry> tensors = header->tensors;
  const std::string written = MakeHeader(tensors, header->metadata);
  const auto again = ParseHeader(written, tensors.empty() ? written.size() : tensors.back().end);
  CHECK(again.ok()) << again.status();
  CHECK(again->metadata == header->metadata);
  CHECK_EQ(again->tensors.size(), header->tensors.size());
  // Where several have no bytes, their order in the file is not said.
  const auto same = [](const TensorEntry& a, const TensorEntry& b) {
    return a.name == b.name && a.dtype == b.dtype && a.shape == b.shape;
  };
  CHECK(std::is_permutation(again->tensors.begin(), again->tensors.end(), header->tensors.begin(), same));
  return 0;
}
