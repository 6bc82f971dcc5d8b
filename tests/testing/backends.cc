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

  Output Forward(const Call& call) const override { return kernel_.Forward(call); }
  at::Tensor Backward(const Call& call, const Output& output, const at::Tensor& dout,
                      const KeyGradients& sums) const override {
    return kernel_.Backward(call, output, dout, sums);
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
