#include "worker/memory/packed_tensors.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <glog/logging.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "common/base/round_up.h"

namespace stemma::worker {
namespace {

constexpr int64_t kPackedAlignment = 64;  // of device memory, so that a span cut there keeps every tensor's alignment

int64_t OffsetBytes(const at::Tensor& t) { return t.storage_offset() * static_cast<int64_t>(t.element_size()); }

// The offset of the last byte that it covers, plus one; t has elements.
int64_t EndBytes(const at::Tensor& t) {
  int64_t last = t.storage_offset();
  for (int64_t dim = 0; dim < t.dim(); ++dim) last += (t.size(dim) - 1) * t.stride(dim);
  return (last + 1) * static_cast<int64_t>(t.element_size());
}

}  // namespace

PackedTensors::PackedTensors(std::vector<at::Tensor> tensors) : tensors_(std::move(tensors)) {
  std::unordered_map<const void*, int64_t> piece_of;  // by storage
  for (const at::Tensor& t : tensors_) {
    View& view = views_.emplace_back();
    if (!t.defined()) continue;
    CHECK(!t.requires_grad()) << "an entry is no part of a graph";
    view = {true, -1, t.options(), t.sizes().vec(), t.strides().vec(), OffsetBytes(t)};
    if (t.numel() == 0) continue;
    const int64_t begin = OffsetBytes(t) / kPackedAlignment * kPackedAlignment, end = EndBytes(t);
    const auto [it, is_new] = piece_of.try_emplace(t.storage().unsafeGetStorageImpl(), pieces_.size());
    view.piece = it->second;
    if (is_new) pieces_.push_back({t.device(), begin, end, 0, nullptr});
    Piece& piece = pieces_[static_cast<size_t>(it->second)];
    piece.begin = std::min(piece.begin, begin);
    piece.end = std::max(piece.end, end);
    piece.data = static_cast<char*>(t.storage().mutable_data()) + piece.begin;
  }
  for (Piece& piece : pieces_) {
    piece.block_begin = bytes_;
    bytes_ += RoundUp(piece.end - piece.begin, kPackedAlignment);
  }
}

std::vector<CopySpan> PackedTensors::SpansTo(void* block) const {
  CHECK(on_device_);
  std::vector<CopySpan> spans;
  for (const Piece& p : pieces_) spans.push_back({p.data, static_cast<char*>(block) + p.block_begin, p.end - p.begin});
  return spans;
}

void PackedTensors::FreeDevice() {
  CHECK(on_device_);
  on_device_ = false;
  tensors_.clear();
  for (Piece& piece : pieces_) piece.data = nullptr;
}

void PackedTensors::AllocateDevice() {
  CHECK(!on_device_);
  std::vector<at::Tensor> storages;
  for (Piece& piece : pieces_) {
    storages.push_back(at::empty({piece.end - piece.begin}, at::TensorOptions(at::kByte).device(piece.device)));
    piece.data = static_cast<char*>(storages.back().mutable_data_ptr());
  }
  for (const View& view : views_) tensors_.push_back(Rebuilt(view, storages));
  on_device_ = true;
}

at::Tensor PackedTensors::Rebuilt(const View& view, const std::vector<at::Tensor>& storages) const {
  if (!view.defined) return {};
  if (view.piece < 0) return at::empty_strided(view.sizes, view.strides, view.options);
  const auto p = static_cast<size_t>(view.piece);
  at::Tensor t = at::empty({0}, view.options);
  const int64_t offset_bytes = view.offset_bytes - pieces_[p].begin;
  return t.set_(storages[p].storage(), offset_bytes / static_cast<int64_t>(t.element_size()), view.sizes, view.strides);
}

std::vector<CopySpan> PackedTensors::SpansFrom(const void* block) const {
  CHECK(on_device_);
  std::vector<CopySpan> spans;
  for (const Piece& p : pieces_) {
    spans.push_back({static_cast<const char*>(block) + p.block_begin, p.data, p.end - p.begin});
  }
  return spans;
}

std::vector<at::Tensor> PackedTensors::Release() && {
  CHECK(on_device_) << "tensors are asked for while they are away";
  return std::move(tensors_);
}

}  // namespace stemma::worker
