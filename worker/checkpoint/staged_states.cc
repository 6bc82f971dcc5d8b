#include "worker/checkpoint/staged_states.h"

#include <ATen/Parallel.h>
#include <ATen/ops/from_blob.h>
#include <glog/logging.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/status_macros.h"

namespace stemma::worker {
namespace {

constexpr int64_t kDirectElements = int64_t{256} << 10;  // copied from a device at a time
constexpr int64_t kThreadBytes = int64_t{1} << 20;       // copied by one thread at a time
// What the copy leaves free: other processes take memory meanwhile.
constexpr double kRoom = 1.1;

at::Tensor Elements(const Weights& weights, StateKind kind, int parameter, int64_t begin, int64_t count) {
  const Parameter& p = weights.at(parameter);
  if (kind == StateKind::kMaster) return p.MasterElements(begin, count);
  return p.StateElements(kind == StateKind::kExpAvg ? p.exp_avg : p.exp_avg_sq, begin, count);
}

struct HostCopy {
  char* to;
  const char* from;
  int64_t bytes;
};

// All copies in one parallel region: with one for each piece, threads that share their cores wait for each other at
// hundreds of barriers, which took five times as long as the copies.
void CopyOnHost(const std::vector<HostCopy>& copies) {
  at::parallel_for(0, static_cast<int64_t>(copies.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const HostCopy& copy = copies[static_cast<size_t>(i)];
      std::memcpy(copy.to, copy.from, static_cast<size_t>(copy.bytes));
    }
  });
}

}  // namespace

PieceReader DirectReader(const Weights& weights) {
  return [&weights](StateKind kind, const StatePiece& piece, const ByteSink& sink) -> absl::Status {
    for (int64_t done = 0; done < piece.count; done += kDirectElements) {
      const at::Tensor on_host =
          Elements(weights, kind, piece.parameter, piece.begin + done, std::min(kDirectElements, piece.count - done))
              .to(at::kCPU)
              .contiguous();
      RETURN_IF_ERROR(sink({static_cast<const char*>(on_host.data_ptr()), on_host.nbytes()}));
    }
    return absl::OkStatus();
  };
}

std::unique_ptr<StagedStates> StagedStates::Copy(const Weights& weights, const std::vector<FileShare>& shares,
                                                 int64_t available_bytes) {
  const int64_t bytes = PieceBytes(shares);
  if (static_cast<double>(available_bytes) < static_cast<double>(bytes) * kRoom) return nullptr;
  absl::StatusOr<std::unique_ptr<HostArena>> arena = HostArena::Create(bytes);
  if (!arena.ok()) return nullptr;
  char* block = bytes > 0 ? static_cast<char*>((*arena)->Take(bytes)) : nullptr;
  CHECK(bytes == 0 || block != nullptr) << "the arena was made for all pieces";
  std::unique_ptr<StagedStates> staged(new StagedStates(*std::move(arena), block, bytes));
  std::vector<HostCopy> copies;
  for (const FileShare& share : shares) {
    for (const StatePiece& piece : share.pieces) {
      const at::Tensor values = Elements(weights, share.kind, piece.parameter, piece.begin, piece.count);
      char* to = block + piece.bytes_before;
      if (!values.is_cpu()) {
        at::from_blob(to, {piece.count}, at::TensorOptions(weights.accumulate_dtype)).copy_(values);
        continue;
      }
      const char* from = static_cast<const char*>(values.data_ptr());
      const auto piece_bytes = static_cast<int64_t>(piece.bytes.bytes());
      for (int64_t done = 0; done < piece_bytes; done += kThreadBytes) {
        copies.push_back({to + done, from + done, std::min(kThreadBytes, piece_bytes - done)});
      }
    }
  }
  CopyOnHost(copies);
  return staged;
}

StagedStates::~StagedStates() {
  if (block_ != nullptr) arena_->Give(block_);
}

PieceReader StagedStates::Reader() const {
  return [this](StateKind, const StatePiece& piece, const ByteSink& sink) {
    return sink({block_ + piece.bytes_before, piece.bytes.bytes()});
  };
}

}  // namespace stemma::worker
