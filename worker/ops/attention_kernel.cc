#include "worker/ops/attention_kernel.h"

#include <ATen/ops/empty.h>
#include <glog/logging.h>

#include <type_traits>

#include "worker/kernels/attention.h"
#include "worker/ops/run_type.h"

namespace stemma {
namespace {

kernels::AttentionSize SizeOf(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal,
                              double scale) {
  CHECK_EQ(q.dim(), 5);
  CHECK_EQ(k.dim(), 4);
  CHECK_GT(k.size(2), 0) << "attention to zero keys";
  CHECK_EQ(q.size(0), k.size(0));
  CHECK_EQ(q.size(1), k.size(1)) << "kv heads of the queries and of the keys";
  CHECK_EQ(q.size(4), k.size(3)) << "head size";
  CHECK(k.sizes() == v.sizes()) << k.sizes() << " and " << v.sizes();
  if (causal) CHECK_EQ(q.size(3), k.size(2));
  return {q.size(0), q.size(1), q.size(2), q.size(3), k.size(2), q.size(4), causal, scale};
}

// x [B, K, g, S, E].
template <typename T>
kernels::AttentionRows<T> QueryRows(const at::Tensor& x) {
  CHECK_EQ(x.stride(4), 1);
  return {StridedData<std::remove_const_t<T>>(x), x.stride(0), x.stride(1), x.stride(2), x.stride(3)};
}

// x [B, K, S, E].
template <typename T>
kernels::AttentionRows<T> KeyRows(const at::Tensor& x) {
  CHECK_EQ(x.stride(3), 1);
  return {StridedData<std::remove_const_t<T>>(x), x.stride(0), x.stride(1), 0, x.stride(2)};
}

// x [B, K, g, S].
template <typename T>
kernels::AttentionRows<T> LseRows(const at::Tensor& x) {
  return {StridedData<std::remove_const_t<T>>(x), x.stride(0), x.stride(1), x.stride(2), x.stride(3)};
}

template <typename Use>
void DispatchAccType(at::ScalarType dtype, const Use& use) {
  CHECK(dtype == at::kFloat || dtype == at::kDouble) << dtype;
  if (dtype == at::kFloat) {
    use.template operator()<float>();
  } else {
    use.template operator()<double>();
  }
}

}  // namespace

AttentionKernel::Output CpuAttention::Forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                              bool causal, double scale) const {
  const kernels::AttentionSize size = SizeOf(q, k, v, causal, scale);
  const at::Tensor scratch = at::empty({kernels::AttentionForwardScratch(size)}, q.options());
  Output output{at::empty(q.sizes(), q.options()), at::empty(q.sizes().slice(0, 4), q.options())};
  DispatchAccType(q.scalar_type(), [&]<typename T>() {
    kernels::AttentionForward<T>({.size = size,
                                  .q = QueryRows<const T>(q),
                                  .k = KeyRows<const T>(k),
                                  .v = KeyRows<const T>(v),
                                  .out = QueryRows<T>(output.out),
                                  .lse = LseRows<T>(output.lse),
                                  .scratch = Data<T>(scratch)});
  });
  return output;
}

at::Tensor CpuAttention::Backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const at::Tensor& out, const at::Tensor& lse, bool causal, double scale,
                                  const KeyGradients& sums) const {
  const kernels::AttentionSize size = SizeOf(q, k, v, causal, scale);
  CHECK(dout.sizes() == q.sizes()) << dout.sizes() << " and " << q.sizes();
  CHECK(out.sizes() == q.sizes()) << out.sizes() << " and " << q.sizes();
  CHECK(lse.sizes() == q.sizes().slice(0, 4)) << lse.sizes() << " and " << q.sizes();
  CHECK(sums.dk.sizes() == k.sizes() && sums.dk.scalar_type() == q.scalar_type()) << sums.dk.sizes();
  CHECK(sums.dv.sizes() == v.sizes() && sums.dv.scalar_type() == q.scalar_type()) << sums.dv.sizes();
  const at::Tensor scratch = at::empty({kernels::AttentionBackwardScratch(size)}, q.options());
  const at::Tensor dq = at::empty(q.sizes(), q.options());
  DispatchAccType(q.scalar_type(), [&]<typename T>() {
    kernels::AttentionBackward<T>({.size = size,
                                   .dout = QueryRows<const T>(dout),
                                   .q = QueryRows<const T>(q),
                                   .k = KeyRows<const T>(k),
                                   .v = KeyRows<const T>(v),
                                   .out = QueryRows<const T>(out),
                                   .lse = LseRows<const T>(lse),
                                   .dq = QueryRows<T>(dq),
                                   .dk = KeyRows<T>(sums.dk),
                                   .dv = KeyRows<T>(sums.dv),
                                   .scratch = Data<T>(scratch)});
  });
  return dq;
}

}  // namespace stemma
