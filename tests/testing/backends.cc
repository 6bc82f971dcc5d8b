#include "tests/testing/backends.h"

#include <glog/logging.h>

#include <cstdlib>
#include <string>

#include "worker/backend/composed/composed_backend.h"
#include "worker/backend/cpu/cpu_backend.h"

namespace stemma::testing {
namespace {

std::string BackendName() {
  const char* name = std::getenv("STEMMA_TEST_BACKEND");
  return name == nullptr ? "cpu" : name;
}

class BorrowedKernel final : public AttentionKernel {
 public:
  explicit BorrowedKernel(const AttentionKernel& kernel) : kernel_(kernel) {}

  Output Forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal,
                 double scale) const override {
    return kernel_.Forward(q, k, v, causal, scale);
  }
  at::Tensor Backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                      const at::Tensor& out, const at::Tensor& lse, bool causal, double scale,
                      const KeyGradients& sums) const override {
    return kernel_.Backward(dout, q, k, v, out, lse, causal, scale, sums);
  }

 private:
  const AttentionKernel& kernel_;
};

}  // namespace

Backend MakeTestBackend() {
  const std::string name = BackendName();
  if (name == "composed") return MakeComposedBackend();
  CHECK_EQ(name, "cpu") << "STEMMA_TEST_BACKEND";
  return MakeCpuBackend();
}

const Backend& TestBackend() {
  static const Backend backend = MakeTestBackend();
  return backend;
}

bool OnCpuBackend() { return TestBackend().name == "cpu"; }

SplitAttention SplitOver(const AttentionKernel& kernel) {
  return SplitAttention(std::make_unique<BorrowedKernel>(kernel));
}

}  // namespace stemma::testing
