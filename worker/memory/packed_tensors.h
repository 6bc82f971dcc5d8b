// PackedTensors: some tensors that go to host memory as one block and come back the same: sizes, strides, what shares
// memory with what, alignment and bits. Of each storage among them goes the span that its tensors cover (so a view
// brings what lies between its elements); pieces lie one after the other in the block, each on a 64-byte border.
//
// Thread safety: none; engine thread. Undefined and empty tensors cost nothing. Nothing may write to the tensors after
// they were given.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "worker/memory/copy_engine.h"

namespace stemma::worker {

class PackedTensors {
 public:
  // Takes ownership. CHECKs that no gradient is asked for.
  explicit PackedTensors(std::vector<at::Tensor> tensors);

  int64_t bytes() const { return bytes_; }  // of the block; a multiple of 64

  // Move out: the copies into a block, then FreeDevice. Move in: AllocateDevice, then the copies back.
  std::vector<CopySpan> SpansTo(void* block) const;
  void FreeDevice();
  void AllocateDevice();
  std::vector<CopySpan> SpansFrom(const void* block) const;

  // The tensors, which must be on the device.
  std::vector<at::Tensor> Release() &&;

 private:
  struct Piece {
    c10::Device device;
    int64_t begin, end;   // bytes of its storage
    int64_t block_begin;  // where it lies in the block
    char* data;           // of `begin`; null while away
  };
  struct View {
    bool defined = false;
    int64_t piece = -1;  // -1: no elements
    at::TensorOptions options;
    std::vector<int64_t> sizes, strides;
    int64_t offset_bytes = 0;  // of its storage as it was
  };

  at::Tensor Rebuilt(const View& view, const std::vector<at::Tensor>& storages) const;

  std::vector<at::Tensor> tensors_;  // empty while away
  std::vector<View> views_;
  std::vector<Piece> pieces_;
  int64_t bytes_ = 0;
  bool on_device_ = true;
};

}  // namespace stemma::worker
