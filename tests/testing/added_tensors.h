// Tensors that old programs leave in a model's files beside those of the model. For tests.
#pragma once

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "common/base/file.h"
#include "common/model/safetensors.h"
#include "worker/model/tensor_reader.h"

namespace stemma::testing {

// Adds a tensor at the end of a safetensors file: these bytes, or zeros.
inline void AddTensor(const std::string& path, const safetensors::TensorEntry& tensor, std::string bytes = "") {
  constexpr uint64_t kFileBytes = uint64_t{64} << 20;
  const safetensors::Header header = safetensors::ReadHeader(path).value();
  const std::string data = ReadFile(path, kFileBytes)->substr(8 + header.raw.size());
  std::vector<safetensors::TensorEntry> tensors = header.tensors;
  tensors.push_back(tensor);
  const std::string made = safetensors::MakeHeader(tensors, header.metadata);
  bytes.resize(tensors.back().end - tensors.back().begin);
  ASSERT_TRUE(WriteFile(path, made + data + bytes).ok());
}

// Adds a tied model's head to the file that has its embedding: the same numbers, but for element `changed`, which is
// another one; -1: all are the same.
inline void AddTiedHead(const std::string& path, safetensors::Dtype dtype, int64_t changed = -1) {
  const safetensors::Header header = safetensors::ReadHeader(path).value();
  for (const safetensors::TensorEntry& t : header.tensors) {
    if (t.name != "model.embed_tokens.weight") continue;
    const std::string content = ReadFile(path, uint64_t{64} << 20).value().substr(t.begin, t.end - t.begin);
    at::Tensor embedding = at::empty(t.shape, at::dtype(worker::TorchDtype(t.dtype).value()));
    std::memcpy(embedding.data_ptr(), content.data(), content.size());
    const at::Tensor head = embedding.to(worker::TorchDtype(dtype).value());
    if (changed >= 0) head.flatten()[changed] += 1;
    return AddTensor(path, {"lm_head.weight", dtype, t.shape},
                     std::string(static_cast<const char*>(head.data_ptr()), head.nbytes()));
  }
  FAIL() << path << " has no embedding";
}

}  // namespace stemma::testing
