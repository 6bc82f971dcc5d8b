#include "worker/ops/routing.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full_like.h>
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

Dispatch MakeDispatch(const at::Tensor& experts_TU, const ExpertRange& here) {
  const int64_t per_token = experts_TU.size(1), choices = experts_TU.numel();
  const at::Tensor host = experts_TU.cpu().contiguous();
  const auto* experts = host.const_data_ptr<int64_t>();
  // Calls visit(choice, number of its expert among those here) for each choice of one of them.
  const auto for_each = [&](const auto& visit) {
    for (int64_t choice = 0; choice < choices; ++choice) {
      const int64_t expert = experts[choice] - here.begin;
      if (expert >= 0 && expert < here.count) visit(choice, static_cast<size_t>(expert));
    }
  };
  std::vector<int64_t> next(static_cast<size_t>(here.count) + 1);  // place of each expert's next assignment
  for_each([&](int64_t, size_t expert) { ++next[expert + 1]; });
  for (size_t e = 1; e < next.size(); ++e) next[e] += next[e - 1];
  const int64_t assignments = next.back();
  at::Tensor rows_A = at::empty({assignments}, host.options()), choices_A = at::empty_like(rows_A);
  at::Tensor places_TU = at::full_like(host, assignments);
  auto* rows = rows_A.mutable_data_ptr<int64_t>();
  auto* choice_of = choices_A.mutable_data_ptr<int64_t>();
  auto* places = places_TU.mutable_data_ptr<int64_t>();
  for_each([&](int64_t choice, size_t expert) {
    const int64_t place = next[expert]++;
    places[choice] = place;
    choice_of[place] = choice;
    rows[place] = choice / per_token;
  });
  next.pop_back();  // each is where its expert's end now
  const at::Device device = experts_TU.device();
  return {rows_A.to(device), choices_A.to(device), places_TU.to(device), host, std::move(next)};
}

at::Tensor RowsForExperts(const at::Tensor& x_TD, const Dispatch& dispatch) {
  return at::index_select(x_TD, 0, dispatch.rows_A);
}

at::Tensor SumOfExperts(const at::Tensor& y_AD, const Dispatch& dispatch) {
  RECORD_USER_SCOPE("SumOfExperts");
  CHECK_EQ(y_AD.size(0), dispatch.assignments() + dispatch.zero_rows());
  const at::Tensor& places_TU = dispatch.places_TU;
  at::Tensor sum_TD = ToAccumulate(at::index_select(y_AD, 0, places_TU.select(1, 0)));
  for (int64_t u = 1; u < places_TU.size(1); ++u) sum_TD.add_(at::index_select(y_AD, 0, places_TU.select(1, u)));
  return sum_TD.to(y_AD.scalar_type());
}

at::Tensor ForExperts(const at::Tensor& values_TU, const Dispatch& dispatch) {
  return at::index_select(values_TU.reshape({-1}), 0, dispatch.choices_A);
}

at::Tensor FromExperts(const at::Tensor& values_A, const Dispatch& dispatch) {
  at::Tensor values_TU = at::zeros(dispatch.places_TU.sizes(), values_A.options());
  values_TU.view({-1}).index_copy_(0, dispatch.choices_A, values_A);
  return values_TU;
}

}  // namespace stemma::worker
