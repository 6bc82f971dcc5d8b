#include "worker/backend/cuda/products.h"

#include <ATen/cuda/CUDAContextLight.h>
#include <cublas_v2.h>
#include <glog/logging.h>

#include <limits>

#include "worker/backend/composed/composed_backend.h"

namespace stemma::worker::cuda {
namespace {

// A matrix whose rows are contiguous: cuBLAS, which counts by columns, sees its transpose with this leading dimension.
bool HasContiguousRows(const at::Tensor& x) {
  return x.numel() > 0 && x.stride(1) == 1 && x.stride(0) >= x.size(1) &&
         x.stride(0) <= std::numeric_limits<int>::max();
}

bool IsBf16(const at::Tensor& x) { return x.scalar_type() == at::kBFloat16; }

int Int(int64_t value) {
  CHECK(value >= 0 && value <= std::numeric_limits<int>::max()) << value;
  return static_cast<int>(value);
}

cudaDataType_t TypeOf(const at::Tensor& x) {
  if (IsBf16(x)) return CUDA_R_16BF;
  CHECK(x.scalar_type() == at::kFloat) << x.scalar_type();
  return CUDA_R_32F;
}

// out [rows, columns] = left · right + beta · out, by the transposes that cuBLAS sees. transpose_left: left is [inner,
// rows] in memory, else [rows, inner]; transpose_right: right is [columns, inner], else [inner, columns].
struct Product {
  const at::Tensor &left, &right, &out;
  bool transpose_left = false, transpose_right = false;
  float beta = 0;
};

// While it lives, no product rounds parts of its sums to the type of its output: cuBLAS may, where it cuts a long inner
// dimension and the output is bf16. LibTorch's setting (cuda_backend.cc) is of its own products; after each of them the
// handle has the default again.
class WholeSums {
 public:
  explicit WholeSums(cublasHandle_t handle) : handle_(handle) { Set(CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION); }
  ~WholeSums() { Set(CUBLAS_DEFAULT_MATH); }
  WholeSums(const WholeSums&) = delete;
  WholeSums& operator=(const WholeSums&) = delete;

 private:
  void Set(cublasMath_t mode) { CHECK_EQ(cublasSetMathMode(handle_, mode), CUBLAS_STATUS_SUCCESS); }

  const cublasHandle_t handle_;
};

void Run(const Product& product) {
  const at::Tensor &left = product.left, &right = product.right, &out = product.out;
  const int64_t inner = left.size(product.transpose_left ? 0 : 1);
  CHECK_EQ(inner, right.size(product.transpose_right ? 1 : 0));
  CHECK_EQ(out.size(0), left.size(product.transpose_left ? 1 : 0));
  CHECK_EQ(out.size(1), right.size(product.transpose_right ? 0 : 1));
  const float alpha = 1;
  const cublasHandle_t handle = at::cuda::getCurrentCUDABlasHandle();
  const WholeSums whole_sums(handle);
  const cublasStatus_t status = cublasGemmEx(
      handle, product.transpose_right ? CUBLAS_OP_T : CUBLAS_OP_N, product.transpose_left ? CUBLAS_OP_T : CUBLAS_OP_N,
      Int(out.size(1)), Int(out.size(0)), Int(inner), &alpha, right.const_data_ptr(), TypeOf(right),
      Int(right.stride(0)), left.const_data_ptr(), TypeOf(left), Int(left.stride(0)), &product.beta,
      out.mutable_data_ptr(), TypeOf(out), Int(out.stride(0)), CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
  TORCH_CHECK(status == CUBLAS_STATUS_SUCCESS, "cublasGemmEx of ", out.sizes(), " over ", inner, ": ",
              cublasGetStatusString(status));
}

bool Fits(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out) {
  return IsBf16(a) && IsBf16(b) && HasContiguousRows(a) && HasContiguousRows(b) && HasContiguousRows(out);
}

}  // namespace

void AddWeightGradient(const WeightGradientOperands& args) {
  if (!Fits(args.dy_TO, args.x_TI, args.dweight_OI)) return ComposedKernels().add_weight_gradient(args);
  Run({.left = args.dy_TO, .right = args.x_TI, .out = args.dweight_OI, .transpose_left = true, .beta = 1});
}

void Logits(const LogitsOperands& args) {
  if (!Fits(args.hidden_TD, args.weight_VD, args.logits_TV)) return ComposedKernels().logits(args);
  Run({.left = args.hidden_TD, .right = args.weight_VD, .out = args.logits_TV, .transpose_right = true});
}

void LogitsBackward(const LogitsBackwardOperands& args) {
  if (!Fits(args.dlogits_TV, args.weight_VD, args.dhidden_TD)) return ComposedKernels().logits_backward(args);
  Run({.left = args.dlogits_TV, .right = args.weight_VD, .out = args.dhidden_TD});
}

}  // namespace stemma::worker::cuda
