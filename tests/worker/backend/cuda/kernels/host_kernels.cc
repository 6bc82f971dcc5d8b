#include "tests/worker/backend/cuda/kernels/host_kernels.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/sort.h>
#include <glog/logging.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "worker/backend/composed/composed_backend.h"
#include "worker/backend/cuda/attention/composed_attention_kernels.h"
#include "worker/backend/cuda/kernel_args.h"
#include "worker/backend/cuda/kernels/finite.h"
#include "worker/backend/cuda/kernels/sums.h"
#include "worker/backend/cuda/kernels/vector_norm.h"
#include "worker/backend/cuda/kernels/word_sum.h"

namespace stemma::testing {
namespace {

namespace cuda = worker::cuda;
using cuda::ArgsOf;
using cuda::Bf16;
using cuda::DispatchRunType;

HostRun run;
bool used_vectors = false;

// A team with the fault of the run.
class FaultyTeam : public HostTeam {
 public:
  using HostTeam::HostTeam;
  void Sync() {
    if (run.fault != Fault::kNoBarriers) HostTeam::Sync();
  }
  template <typename A>
  A Sum(A x) {
    const A sum = HostTeam::Sum(x);
    return run.fault == Fault::kNoSums ? A(0) : run.fault == Fault::kOwnSums ? x : sum;
  }
  template <typename A>
  A Max(A x) {
    const A max = HostTeam::Max(x);
    return run.fault == Fault::kOwnMax ? x : max;
  }
};

template <typename Body>
void RunBody(const Body& body) {
  RunTeams<FaultyTeam>(run.shape, body);
}

// Calls body.template operator()<V>() with packs where the launch would take packs.
template <int kPack, typename Body>
void PickVector(bool vectors, const Body& body) {
  used_vectors = vectors;
  vectors ? body.template operator()<kPack>() : body.template operator()<1>();
}

// Partial sums, NaN where nothing is written.
at::Tensor Partials(int64_t rows, int64_t width, at::ScalarType dtype) {
  return at::full({rows, width}, std::numeric_limits<double>::quiet_NaN(), dtype);
}

// sums += Σ partials[:, first, first + numel of sums), and next_sums, if defined, += those of the columns behind.
template <typename A>
void AddPartials(const at::Tensor& partials, int64_t first, const at::Tensor& sums, const at::Tensor& next_sums = {}) {
  std::vector<A> shared(static_cast<size_t>(run.shape.size));
  const cuda::ColumnSumsArgs<A> args{.partials = worker::Data<const A>(partials) + first,
                                     .sums = worker::Data<A>(sums),
                                     .next_sums = next_sums.defined() ? worker::Data<A>(next_sums) : nullptr,
                                     .rows = partials.size(0) - (run.fault == Fault::kLastTeamMissing ? 1 : 0),
                                     .width = sums.numel(),
                                     .row_stride = partials.size(1)};
  RunBody([&](auto& team) { cuda::AddColumnSums(team, args, shared.data()); });
}

void RmsNormForward(const RmsNormForwardOperands& operands) {
  DispatchRunType(operands.x_TD.scalar_type(), [&]<typename T>() {
    const auto args = ArgsOf<T>(operands);
    PickVector<cuda::kVector<T>>(
        UsesVectors(args), [&]<int V>() { RunBody([&](auto& team) { cuda::RmsNormForward<T, V>(team, args); }); });
  });
}

void RmsNormBackward(const RmsNormBackwardOperands& operands) {
  const at::Tensor partials = Partials(run.shape.count, operands.x_TD.size(1), at::kFloat);
  DispatchRunType(operands.x_TD.scalar_type(), [&]<typename T>() {
    const auto args = ArgsOf<T>(operands, partials);
    PickVector<cuda::kVector<T>>(
        UsesVectors(args), [&]<int V>() { RunBody([&](auto& team) { cuda::RmsNormBackward<T, V>(team, args); }); });
  });
  AddPartials<float>(partials, 0, operands.dweight_D);
}

void SwigluForward(const SwigluForwardOperands& operands) {
  DispatchRunType(operands.y_TF.scalar_type(), [&]<typename T>() {
    const auto args = ArgsOf<T>(operands);
    PickVector<cuda::kVector<T>>(UsesVectors(args),
                                 [&]<int V>() { RunBody([&](auto& team) { cuda::SwigluForward<T, V>(team, args); }); });
  });
}

void SwigluBackward(const SwigluBackwardOperands& operands) {
  DispatchRunType(operands.dy_TF.scalar_type(), [&]<typename T>() {
    const auto args = ArgsOf<T>(operands);
    PickVector<cuda::kVector<T>>(
        UsesVectors(args), [&]<int V>() { RunBody([&](auto& team) { cuda::SwigluBackward<T, V>(team, args); }); });
  });
}

void QkvForward(const QkvForwardOperands& operands) {
  DispatchRunType(operands.qkv_TJ.scalar_type(), [&]<typename T>() {
    const auto args = ArgsOf<T>(operands);
    PickVector<cuda::kVector<T>>(UsesVectors(args),
                                 [&]<int V>() { RunBody([&](auto& team) { cuda::QkvForward<T, V>(team, args); }); });
  });
}

// Teams are tiles; every two of them are a block, which joins their sums and leaves them as partial sums.
template <typename T, typename G>
void RunQkvBackward(const QkvBackwardOperands& operands) {
  const auto args = ArgsOf<T, G>(operands);
  const int64_t width = 2 * args.head_size, blocks = (run.shape.count + 1) / 2;
  const at::Tensor tiles = Partials(run.shape.count, width, at::kFloat);
  const at::Tensor partials = Partials(blocks, width, at::kFloat);
  PickVector<cuda::kVector<T>>(UsesVectors(args), [&]<int V>() {
    RunBody([&](auto& team) {
      float* sums = worker::Data<float>(tiles) + team.index() * width;
      switch (cuda::QkNormOf(args.k_weight_E != nullptr, args.head_size, team.size(), V)) {
        case cuda::QkNorm::kNone:
          return cuda::QkvBackward<T, G, V, cuda::QkNorm::kNone>(team, args, nullptr);
        case cuda::QkNorm::kOnePack:
          return cuda::QkvBackward<T, G, V, cuda::QkNorm::kOnePack>(team, args, sums);
        case cuda::QkNorm::kPacks:
          return cuda::QkvBackward<T, G, V, cuda::QkNorm::kPacks>(team, args, sums);
      }
    });
  });
  if (args.k_weight_E == nullptr) return;
  for (int64_t block = 0; block < blocks; ++block) {
    const int num_tiles = static_cast<int>(std::min<int64_t>(2, run.shape.count - 2 * block));
    const float* of_block = worker::Data<const float>(tiles) + 2 * block * width;
    RunTeams({run.shape.size, 1, run.shape.order}, [&](auto& team) {
      cuda::JoinTiles(team, of_block, num_tiles, width, worker::Data<float>(partials) + block * width);
    });
  }
  if (args.num_heads > 0) return AddPartials<float>(partials, 0, operands.dq_weight_E, operands.dk_weight_E);
  AddPartials<float>(partials, args.head_size, operands.dk_weight_E);
}

void QkvBackward(const QkvBackwardOperands& operands) {
  const at::ScalarType dtype = operands.dqkv_TJ.scalar_type();
  if (dtype == at::kFloat) {
    RunQkvBackward<float, float>(operands);
  } else if (operands.dk_TKE.scalar_type() == dtype) {
    RunQkvBackward<Bf16, Bf16>(operands);
  } else {
    RunQkvBackward<Bf16, float>(operands);
  }
}

void EmbeddingBackward(const EmbeddingBackwardOperands& operands) {
  const auto [sorted, rows] =
      at::sort(operands.tokens_T.to(at::kInt), /*stable=*/true, /*dim=*/0, /*descending=*/false);
  DispatchRunType(operands.dx_TD.scalar_type(), [&]<typename T>() {
    const auto args = ArgsOf<T>(operands, sorted, rows);
    PickVector<cuda::kVector<T>>(
        UsesVectors(args), [&]<int V>() { RunBody([&](auto& team) { cuda::EmbeddingBackward<T, V>(team, args); }); });
  });
}

void HeadForward(const HeadForwardOperands& operands) {
  const cuda::HeadForwardArgs args = ArgsOf(operands);
  PickVector<cuda::kHeadVector>(HeadUsesVectors(args),
                                [&]<int V>() { RunBody([&](auto& team) { cuda::HeadForward<V>(team, args); }); });
}

void HeadBackward(const HeadBackwardOperands& operands) {
  const cuda::HeadBackwardArgs args = ArgsOf(operands);
  PickVector<cuda::kHeadVector>(HeadUsesVectors(args), [&]<int V>() {
    RunBody([&](auto& team) {
      cuda::DlogitsAreBf16(operands) ? cuda::HeadBackward<Bf16, V>(team, args)
                                     : cuda::HeadBackward<float, V>(team, args);
    });
  });
}

void Loss(const LossOperands& operands) {
  at::Tensor ratios;
  if (operands.options.mode == LossMode::kGspo) ratios = Partials(1, operands.log_prob_T.numel(), at::kDouble)[0];
  const at::Tensor partials = Partials(run.shape.count, cuda::kNumLossRowSums, at::kDouble);
  const cuda::LossArgs args = ArgsOf(operands, ratios, partials);
  if (ratios.defined()) {
    const auto sequences = SequenceLogRatiosArgsOf(args, operands.rows.rollout_T, ratios);
    RunBody([&](auto& team) { cuda::SequenceLogRatios(team, sequences); });
  }
  RunBody([&](auto& team) { cuda::Loss(team, args); });
  AddPartials<double>(partials, 0, operands.sums);
}

void VectorNorm(const VectorNormOperands& operands) {
  const at::Tensor partials = Partials(1, run.shape.count, at::kDouble);
  DispatchRunType(operands.values.scalar_type(), [&]<typename T>() {
    const cuda::VectorNormArgs<T> args{worker::Data<const T>(operands.values), operands.values.numel(),
                                       worker::Data<double>(partials)};
    PickVector<cuda::kVector<T>>(UsesVectors(args),
                                 [&]<int V>() { RunBody([&](auto& team) { cuda::SumSquares<T, V>(team, args); }); });
  });
  const TeamShape one{run.shape.size, 1, run.shape.order};
  const int64_t teams = partials.numel() - (run.fault == Fault::kLastTeamMissing ? 1 : 0);
  RunTeams(one, [&](auto& team) {
    cuda::NormOfPartials(team, worker::Data<const double>(partials), teams, worker::Data<double>(operands.norm));
  });
}

void FirstNonfinite(const FirstNonfiniteOperands& operands) {
  const at::Tensor& values = operands.values;
  const at::Tensor partials = at::full({run.shape.count}, 1 << 30, at::kLong);
  DispatchRunType(values.scalar_type(), [&]<typename T>() {
    const cuda::FirstNonfiniteArgs<T> args{worker::Data<const T>(values), values.numel(),
                                           worker::Data<int64_t>(partials)};
    PickVector<cuda::kVector<T>>(UsesVectors(args),
                                 [&]<int V>() { RunBody([&](auto& team) { cuda::FindNonfinite<T, V>(team, args); }); });
  });
  const TeamShape one{run.shape.size, 1, run.shape.order};
  RunTeams(one, [&](auto& team) {
    cuda::FirstOfPartials(team, worker::Data<const int64_t>(partials), partials.numel(), values.numel(),
                          worker::Data<int64_t>(operands.index));
  });
}

void WordSum(const WordSumOperands& operands) {
  const at::Tensor partials = at::full({run.shape.count}, 1 << 30, at::kLong);
  DispatchRunType(operands.values.scalar_type(), [&]<typename T>() {
    const auto args = ArgsOf<T>(operands, partials);
    PickVector<cuda::kVector<T>>(UsesVectors(args),
                                 [&]<int V>() { RunBody([&](auto& team) { cuda::SumWords<T, V>(team, args); }); });
  });
  const TeamShape one{run.shape.size, 1, run.shape.order};
  const int64_t teams = partials.numel() - (run.fault == Fault::kLastTeamMissing ? 1 : 0);
  RunTeams(one, [&](auto& team) {
    cuda::SumOfPartials(team, worker::Data<const int64_t>(partials), teams, worker::Data<int64_t>(operands.sum));
  });
}

void Merge(const cuda::MergeOperands& operands) {
  DispatchRunType(operands.o_THE.scalar_type(), [&]<typename T>() {
    const auto args = ArgsOf<T>(operands);
    PickVector<cuda::kVector<T>>(UsesVectors(args),
                                 [&]<int V>() { RunBody([&](auto& team) { cuda::Merge<T, V>(team, args); }); });
  });
}

void AddParts(const cuda::AddPartsOperands& operands) {
  DispatchRunType(operands.parts_NCKE.scalar_type(), [&]<typename T>() {
    const auto args = ArgsOf<T>(operands);
    PickVector<cuda::kVector<T>>(UsesVectors(args),
                                 [&]<int V>() { RunBody([&](auto& team) { cuda::AddParts<T, V>(team, args); }); });
  });
}

}  // namespace

Kernels HostKernels(const HostRun& as_said) {
  run = as_said;
  Kernels kernels = ComposedKernels();  // its products
  kernels.rms_norm_forward = RmsNormForward;
  kernels.rms_norm_backward = RmsNormBackward;
  kernels.swiglu_forward = SwigluForward;
  kernels.swiglu_backward = SwigluBackward;
  kernels.qkv_forward = QkvForward;
  kernels.qkv_backward = QkvBackward;
  kernels.embedding_backward = EmbeddingBackward;
  kernels.head_forward = HeadForward;
  kernels.head_backward = HeadBackward;
  kernels.loss = Loss;
  kernels.vector_norm = VectorNorm;
  kernels.first_nonfinite = FirstNonfinite;
  kernels.word_sum = WordSum;
  return kernels;
}

cuda::AttentionKernels HostAttentionKernels(const HostRun& as_said) {
  run = as_said;
  return {.merge = Merge, .add_parts = AddParts};
}

bool LastBodyUsedVectors() { return used_vectors; }

}  // namespace stemma::testing
