#include "worker/ops/routing.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>
#include <glog/logging.h>

#include <utility>

#include "worker/backend/accumulate_type.h"

namespace stemma::worker {
namespace {

at::Tensor ToAccumulate(at::Tensor values) { return values.to(AccType(values.scalar_type())); }

}  // namespace

Routing RouteForward(at::Tensor logits_TX, const Experts& experts) {
  RECORD_USER_SCOPE("RouteForward");
  CHECK_EQ(logits_TX.size(1), experts.count);
  logits_TX = ToAccumulate(std::move(logits_TX));
  Routing routing;
  {
    const auto [sorted_TX, order_TX] = at::sort(logits_TX, /*stable=*/true, /*dim=*/1, /*descending=*/true);
    routing.experts_TU = order_TX.narrow(1, 0, experts.per_token).contiguous();
    if (experts.weights_sum_to_one) routing.weights_TU = at::softmax(sorted_TX.narrow(1, 0, experts.per_token), 1);
  }
  if (experts.weights_sum_to_one) return routing;
  routing.probs_TX = at::softmax(logits_TX, 1);
  routing.weights_TU = routing.probs_TX.gather(1, routing.experts_TU);
  return routing;
}

// The chosen experts' weights are w = p of all experts, or where they sum to one the softmax over the chosen ones'
// logits alone. Either has the gradient of a softmax: dlogit = p·(dp − Σ p·dp).
at::Tensor RouteBackward(const Routing& routing, const at::Tensor& dweights_TU, const Experts& experts) {
  RECORD_USER_SCOPE("RouteBackward");
  at::Tensor direct_TU = routing.weights_TU * dweights_TU;
  const at::Tensor sum_T1 = at::sum(direct_TU, {1}, /*keepdim=*/true);
  if (!experts.weights_sum_to_one) {
    at::Tensor dlogits_TX = routing.probs_TX * sum_T1.neg();
    return dlogits_TX.scatter_add_(1, routing.experts_TU, direct_TU);
  }
  direct_TU.addcmul_(routing.weights_TU, sum_T1, /*value=*/-1);
  at::Tensor dlogits_TX = at::zeros({direct_TU.size(0), experts.count}, direct_TU.options());
  return dlogits_TX.scatter_(1, routing.experts_TU, direct_TU);
}

Dispatch MakeDispatch(const at::Tensor& experts_TU, int64_t num_experts) {
  const int64_t per_token = experts_TU.size(1), assignments = experts_TU.numel();
  const at::Tensor host = experts_TU.cpu().contiguous();
  const auto* experts = host.const_data_ptr<int64_t>();
  std::vector<int64_t> next(static_cast<size_t>(num_experts) + 1);  // place of each expert's next assignment
  for (int64_t a = 0; a < assignments; ++a) ++next[static_cast<size_t>(experts[a]) + 1];
  for (size_t e = 1; e < next.size(); ++e) next[e] += next[e - 1];
  at::Tensor rows_A = at::empty({assignments}, host.options()), places_A = at::empty_like(rows_A);
  auto* rows = rows_A.mutable_data_ptr<int64_t>();
  auto* places = places_A.mutable_data_ptr<int64_t>();
  for (int64_t a = 0; a < assignments; ++a) {
    places[a] = next[static_cast<size_t>(experts[a])]++;
    rows[places[a]] = a / per_token;
  }
  next.pop_back();  // each is where its expert's end now
  return {rows_A.to(experts_TU.device()), places_A.to(experts_TU.device()), std::move(next)};
}

at::Tensor RowsForExperts(const at::Tensor& x_TD, const Dispatch& dispatch) {
  return at::index_select(x_TD, 0, dispatch.rows_A);
}

at::Tensor SumOfExperts(const at::Tensor& y_AD, const Dispatch& dispatch, int64_t per_token) {
  RECORD_USER_SCOPE("SumOfExperts");
  const at::Tensor places_TU = dispatch.places_A.view({-1, per_token});
  at::Tensor sum_TD = ToAccumulate(at::index_select(y_AD, 0, places_TU.select(1, 0)));
  for (int64_t u = 1; u < per_token; ++u) sum_TD.add_(at::index_select(y_AD, 0, places_TU.select(1, u)));
  return sum_TD.to(y_AD.scalar_type());
}

at::Tensor ForExperts(const at::Tensor& values_TU, const Dispatch& dispatch) {
  return at::empty({values_TU.numel()}, values_TU.options()).index_copy_(0, dispatch.places_A, values_TU.reshape({-1}));
}

at::Tensor FromExperts(const at::Tensor& values_A, const Dispatch& dispatch, int64_t per_token) {
  return at::index_select(values_A, 0, dispatch.places_A).view({-1, per_token});
}

}  // namespace stemma::worker
