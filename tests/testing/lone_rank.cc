#include "tests/testing/lone_rank.h"

#include <ATen/ops/empty_like.h>

#include <string>
#include <utility>

#include "worker/parallel/local_communicator.h"

namespace stemma::testing {
namespace {

class LoneRank final : public worker::Communicator {
 public:
  LoneRank(std::string axis, int rank, int size) : Communicator(std::move(axis), rank, size) {}

 private:
  worker::StartedCall Start(const worker::CollectiveCall& call) override {
    const at::Tensor scratch = ScratchOf(call);
    return {[this, call, scratch] {
      Fill(call, scratch);
      return absl::OkStatus();
    }};
  }

  static at::Tensor ScratchOf(const worker::CollectiveCall& call) {
    switch (call.kind) {
      case worker::CollectiveKind::kAllGather:  // Gloo's own
        return at::empty_like(call.output.view(-1));
      case worker::CollectiveKind::kReduceScatterSum:
        return call.scratch.defined() ? call.scratch : at::empty_like(call.input.view(-1));
      default:
        return {};
    }
  }

  void Fill(const worker::CollectiveCall& call, const at::Tensor& scratch) const {
    if (call.kind == worker::CollectiveKind::kAllGather) {
      const at::Tensor own = call.input.view(-1), all = call.output.view(-1);
      for (int rank = 0; rank < size(); ++rank) all.narrow(0, rank * own.numel(), own.numel()).copy_(own);
    } else if (call.kind == worker::CollectiveKind::kReceive) {
      at::Tensor(call.output).zero_();
    } else if (call.kind == worker::CollectiveKind::kReduceScatterSum) {
      const int64_t part = call.output.numel();
      const at::Tensor own = scratch.view(-1).narrow(0, rank() * part, part);
      own.copy_(call.input.view(-1).narrow(0, rank() * part, part));
      call.output.view(-1).copy_(own);
    }
  }
};

std::unique_ptr<worker::Communicator> MakeAxis(const std::string& axis, int64_t rank, int64_t size) {
  if (size == 1) return std::make_unique<worker::LocalCommunicator>(axis);
  return std::make_unique<LoneRank>(axis, static_cast<int>(rank), static_cast<int>(size));
}

}  // namespace

worker::MeshRanks MakeLoneRank(const v1::Mesh& mesh, int64_t kv_replicas, int cp_rank, int pp_rank, int tp_rank) {
  const int64_t cp = CpSize(mesh), tp = TpSize(mesh), of_tp = tp_rank < 0 ? tp - 1 : tp_rank;
  return {MakeAxis("dp", cp_rank, DpSize(mesh) * cp), MakeAxis("cp", cp_rank, cp), MakeAxis("tp", of_tp, tp),
          MakeAxis("kv", of_tp % kv_replicas, kv_replicas), MakeAxis("pp", pp_rank, PpSize(mesh))};
}

}  // namespace stemma::testing
