// The head's rows on CUDA.
#include "worker/backend/composed/composed_backend.h"
#include "worker/backend/cuda/cuda_kernels.h"
#include "worker/backend/cuda/kernel_args.h"
#include "worker/backend/cuda/kernels/launch.h"
#include "worker/backend/cuda/launching.h"

namespace stemma::worker::cuda {

void CudaHeadForward(const HeadForwardOperands& args) {
  if (args.logits_TV.scalar_type() == at::kDouble) return ComposedKernels().head_forward(args);
  const Launching launching(args.logits_TV);
  CheckLaunch(LaunchHeadForward(ArgsOf(args), launching.stream()), "head_forward");
}

void CudaHeadBackward(const HeadBackwardOperands& args) {
  if (args.logits_TV.scalar_type() == at::kDouble) return ComposedKernels().head_backward(args);
  const Launching launching(args.logits_TV);
  CheckLaunch(DlogitsAreBf16(args) ? LaunchHeadBackward<Bf16>(ArgsOf(args), launching.stream())
                                   : LaunchHeadBackward<float>(ArgsOf(args), launching.stream()),
              "head_backward");
}

}  // namespace stemma::worker::cuda
