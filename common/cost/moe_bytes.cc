#include "common/cost/moe_bytes.h"

#include <algorithm>

#include "common/cost/gradient_operands.h"
#include "common/cost/tape_policy.h"

namespace stemma {
namespace {

// What the moments are sums of, where so many assignments are of this rank's experts.
struct MoeTensors {
  MoeTensors(const TensorBytes& t, int64_t own_assignments)
      : s(t.shape),
        assignments(own_assignments),
        all_assignments(t.rows * s.config.experts.value().per_token),
        ffn(assignments * s.run_bytes * s.config.ffn_size),
        routed((assignments + (s.config.experts->ep > 1 ? 1 : 0)) * s.run_bytes * s.config.hidden_size),
        weights(assignments * s.run_bytes),
        own_weight_gradients(assignments * s.accumulate_bytes),
        weight_gradients(all_assignments * s.accumulate_bytes),
        ways((2 * assignments + all_assignments) * kRowNumberBytes),
        own_logits(t.input / s.config.hidden_size * s.config.experts->count),
        logits(t.normed / s.config.hidden_size * s.config.experts->count),
        probabilities(t.rows * s.config.experts->count * s.accumulate_bytes),
        places(t.rows * s.config.experts->count * kRowNumberBytes) {}

  // The router's products: of own rows, which are copied, then gathered; in the accumulate dtype; sorted, with their
  // places and the choice, or with all probabilities and the choice.
  int64_t Routing(const TensorBytes& t) const {
    const int64_t gathering = s.tp > 1 ? own_logits + std::max(t.input, 2 * logits) : logits;
    const int64_t upcast = Upcasts(s) ? logits + probabilities : logits, products = Upcasts(s) ? probabilities : logits;
    const int64_t numbers = all_assignments * kRowNumberBytes, chosen = all_assignments * s.accumulate_bytes;
    const bool sums_to_one = s.config.experts->weights_sum_to_one;
    const int64_t sorting = products + probabilities + places + numbers + (sums_to_one ? 2 * chosen : 0);
    const int64_t weighing = sums_to_one ? 0 : products + probabilities + numbers + chosen;
    return std::max({gathering, upcast, sorting, weighing});
  }

  // Rows' sums over their experts, in the accumulate dtype, with the rows that are added to them, and those upcast.
  int64_t Sums(const TensorBytes& t) const {
    const bool adds = s.config.experts->per_token > 1;
    if (!Upcasts(s)) return (adds ? 2 : 1) * t.product;
    return t.product + (adds ? 2 : 1) * (t.product / s.run_bytes * s.accumulate_bytes);
  }

  const ByteShape& s;
  int64_t assignments, all_assignments;  // to own experts; to all
  int64_t ffn;                           // of own assignments, as `routed`, which is as wide as the model, is
  int64_t routed;                        // what others' experts give is one row of zeros more
  int64_t weights;                       // as factors of rows
  int64_t own_weight_gradients, weight_gradients;
  int64_t ways;                               // of rows to their experts, and back
  int64_t own_logits, logits, probabilities;  // logits of all rows, padded
  int64_t places;                             // of all experts in the order of their products
};

// What of the products over so many assignments a forward leaves on the tape.
struct Products {
  int64_t assignments;
  bool gate_up, act;
};

int64_t ForwardBytes(const TensorBytes& t, v1::TapePolicy policy, const Products& products) {
  const MoeTensors m(t, products.assignments);
  const int64_t f = m.ffn, there = t.routing + m.ways;
  const int64_t after = there + (KeepsElementwise(policy) ? t.normed : 0);
  const int64_t gate_up = products.gate_up ? 2 * f : 0, act = products.act ? f : 0;
  const int64_t weighted = after + gate_up + 2 * f + m.weights;
  const int64_t down = after + gate_up + act + f + m.routed;
  const int64_t sums = after + gate_up + act + m.routed + m.Sums(t);
  // The sum over ranks, then with the residual.
  const int64_t output = after + gate_up + act + t.product + (t.gathered > 0 ? std::max(t.sums, 2 * t.input) : t.input);
  return std::max(
      {t.normed + m.Routing(t), t.normed + there + m.routed + 2 * f, after + 3 * f, weighted, down, sums, output});
}

int64_t BackwardBytes(const TensorBytes& t, v1::TapePolicy policy, const Products& products) {
  const MoeTensors m(t, products.assignments);
  const ByteShape& s = t.shape;
  const int64_t f = m.ffn, d = s.config.hidden_size, ffn = s.config.ffn_size;
  const int64_t norm2 =
      KeepsElementwise(policy) ? 0 : GatheredNormBytes(t) + (products.gate_up ? 2 * f : 0) + t.routing;
  const int64_t there = t.normed + t.routing + m.ways;
  const int64_t gate_up_again = products.gate_up ? 0 : there + m.routed + 2 * f;
  const int64_t gathering = there + 3 * f + t.gathered + t.gather_scratch;
  const int64_t behind = there + t.gathered + m.weights;  // with the gradient of all rows' outputs
  const int64_t down = behind + 4 * f + m.routed + GradientOperands(s, t.rows, d + ffn);
  const int64_t act = behind + m.weight_gradients + 5 * f;
  const int64_t weights =
      behind + m.own_weight_gradients + (Upcasts(s) ? 4 * f + f / s.run_bytes * s.accumulate_bytes : 0);
  const int64_t before = there + m.weight_gradients;
  const int64_t gate_up = before + 2 * f + m.routed + GradientOperands(s, t.rows, d + 2 * ffn);
  const int64_t sums = before + m.routed + m.Sums(t);
  const int64_t summing = before + t.product + t.sums;  // over ranks
  // dh; the gradient of the products, of all rows and of own ones; own rows of the norm.
  const int64_t own_rows = t.input / (s.run_bytes * d), own_norm = s.tp > 1 ? t.input : 0;
  const int64_t own_sum = Upcasts(s) ? m.own_logits / s.run_bytes * s.accumulate_bytes : 0;  // has memory of its own
  const int64_t dlogits = before + t.input + m.logits + (s.tp > 1 ? 2 * m.logits + own_sum : 0);
  const int64_t making = before + t.input + m.probabilities + std::max(m.weight_gradients, Upcasts(s) ? m.logits : 0);
  const int64_t router = before + t.input + m.logits + (s.tp > 1 ? m.own_logits : 0) + own_norm +
                         GradientOperands(s, own_rows, d + s.config.experts->count);
  const int64_t norm = before - t.normed + 2 * t.input + m.logits + (s.tp > 1 ? m.own_logits : 0);
  return std::max(
      {norm2, gate_up_again, gathering, down, act, weights, gate_up, sums, summing, making, dlogits, router, norm});
}

// Calls count(products) for a layer with as many assignments as are kept, and for one with all there may be, of which
// less is kept; returns the larger number.
template <typename Count>
int64_t Most(const TensorBytes& t, v1::TapePolicy policy, const Count& count) {
  const Experts& experts = t.shape.config.experts.value();
  const int64_t kept = KeptAssignments(experts, t.rows), most = MostAssignments(experts, t.rows);
  const int64_t bytes = count(Products{kept, KeepsGateUp(policy), KeepsElementwise(policy)});
  return most == kept ? bytes : std::max(bytes, count(Products{most, false, false}));
}

}  // namespace

int64_t MoeForwardBytes(const TensorBytes& t, v1::TapePolicy policy) {
  return Most(t, policy, [&](const Products& products) { return ForwardBytes(t, policy, products); });
}

int64_t MoeBackwardBytes(const TensorBytes& t, v1::TapePolicy policy) {
  return Most(t, policy, [&](const Products& products) { return BackwardBytes(t, policy, products); });
}

}  // namespace stemma
