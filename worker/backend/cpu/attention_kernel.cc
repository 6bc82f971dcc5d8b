#include "worker/backend/cpu/attention_kernel.h"

#include <ATen/ops/empty.h>
#include <glog/logging.h>

#include <type_traits>

#include "worker/backend/cpu/attention.h"
#include "worker/backend/cpu/typed_data.h"

namespace stemma::worker {
namespace {

kernels::AttentionSize SizeOf(const AttentionKernel::Call& call) {
  const at::Tensor &q = call.q, &k = call.k;
  CHECK_EQ(q.dim(), 5);
  CHECK_EQ(k.dim(), 4);
  CHECK_GT(k.size(2), 0) << "attention to zero keys";
  CHECK_EQ(q.size(0), k.size(0));
  CHECK_EQ(q.size(1), k.size(1)) << "kv heads of the queries and of the keys";
  CHECK_EQ(q.size(4), k.size(3)) << "head size";
  CHECK(k.sizes() == call.v.sizes()) << k.sizes() << " and " << call.v.sizes();
  if (call.causal) CHECK_EQ(q.size(3), k.size(2));
  return {q.size(0), q.size(1), q.size(2), q.size(3), k.size(2), q.size(4), call.causal, call.scale};
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

// Calls use.template operator()<T, Kv>() with the types of the queries and of the keys.
template <typename Use>
void DispatchTypes(at::ScalarType queries, at::ScalarType keys, const Use& use) {
  if (queries == at::kDouble && keys == at::kDouble) return use.template operator()<double, double>();
  CHECK(queries == at::kFloat) << queries << " queries, " << keys << " keys";
  if (keys == at::kBFloat16) return use.template operator()<float, kernels::Bf16>();
  CHECK(keys == at::kFloat) << queries << " queries, " << keys << " keys";
  use.template operator()<float, float>();
}

}  // namespace

AttentionKernel::Output CpuAttention::Forward(const Call& call) const {
  const kernels::AttentionSize size = SizeOf(call);
  const at::Tensor &q = call.q, &k = call.k;
  Output output{at::empty(q.sizes(), q.options()), at::empty(q.sizes().slice(0, 4), q.options())};
  DispatchTypes(q.scalar_type(), k.scalar_type(), [&]<typename T, typename Kv>() {
    const at::Tensor scratch = at::empty({kernels::AttentionForwardScratch(size)}, q.options());
    kernels::AttentionForward<T, Kv>({.size = size,
                                      .q = QueryRows<const T>(q),
                                      .k = KeyRows<const Kv>(k),
                                      .v = KeyRows<const Kv>(call.v),
                                      .out = QueryRows<T>(output.out),
                                      .lse = LseRows<T>(output.lse),
                                      .scratch = Data<T>(scratch)});
  });
  return output;
}

at::Tensor CpuAttention::Backward(const Call& call, const Output& output, const at::Tensor& dout,
                                  const KeyGradients& sums) const {
  const kernels::AttentionSize size = SizeOf(call);
  const at::Tensor &q = call.q, &k = call.k;
  CHECK(dout.sizes() == q.sizes()) << dout.sizes() << " and " << q.sizes();
  CHECK(output.out.sizes() == q.sizes()) << output.out.sizes() << " and " << q.sizes();
  CHECK(output.lse.sizes() == q.sizes().slice(0, 4)) << output.lse.sizes() << " and " << q.sizes();
  CHECK(sums.dk.sizes() == k.sizes() && sums.dk.scalar_type() == q.scalar_type()) << sums.dk.sizes();
  CHECK(sums.dv.sizes() == k.sizes() && sums.dv.scalar_type() == q.scalar_type()) << sums.dv.sizes();
  const at::Tensor dq = at::empty(q.sizes(), q.options());
  DispatchTypes(q.scalar_type(), k.scalar_type(), [&]<typename T, typename Kv>() {
    const at::Tensor scratch = at::empty({kernels::AttentionBackwardScratch(size)}, q.options());
    kernels::AttentionBackward<T, Kv>({.size = size,
                                       .dout = QueryRows<const T>(dout),
                                       .q = QueryRows<const T>(q),
                                       .out = QueryRows<const T>(output.out),
                                       .lse = LseRows<const T>(output.lse),
                                       .k = KeyRows<const Kv>(k),
                                       .v = KeyRows<const Kv>(call.v),
                                       .dq = QueryRows<T>(dq),
                                       .dk = KeyRows<T>(sums.dk),
                                       .dv = KeyRows<T>(sums.dv),
                                       .scratch = Data<T>(scratch)});
  });
  return dq;
}

}  // namespace stemma::worker
