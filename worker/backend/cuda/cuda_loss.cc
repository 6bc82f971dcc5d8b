// The loss of rows on CUDA. Rows are fp64 in every run, so that every run has this kernel.
#include <ATen/ops/empty.h>

#include "worker/backend/cuda/cuda_kernels.h"
#include "worker/backend/cuda/kernel_args.h"
#include "worker/backend/cuda/kernels/launch_loss.h"
#include "worker/backend/cuda/launching.h"

namespace stemma::worker::cuda {

void CudaLoss(const LossOperands& args) {
  const int64_t rows = args.log_prob_T.numel();
  if (rows == 0) return;
  const Launching launching(args.log_prob_T);
  const at::Tensor partials = at::empty({LossTeams(rows), kNumLossRowSums}, args.log_prob_T.options());
  at::Tensor ratios;
  if (args.options.mode == LossMode::kGspo) ratios = at::empty({rows}, args.log_prob_T.options());
  const LossArgs raw = ArgsOf(args, ratios, partials);
  if (ratios.defined()) {
    CheckLaunch(LaunchSequenceLogRatios(SequenceLogRatiosArgsOf(raw, args.rows.rollout_T, ratios), launching.stream()),
                "sequence_log_ratios");
  }
  CheckLaunch(LaunchLoss(raw, Data<double>(args.sums), launching.stream()), "loss");
}

}  // namespace stemma::worker::cuda
