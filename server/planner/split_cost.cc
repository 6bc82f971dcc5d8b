#include "server/planner/split_cost.h"

#include <memory>
#include <numeric>

namespace stemma::server {
namespace {

// The group as copies of the model may share it. One rank's copies keep K/V in one way anyhow.
ClusterShape SplitShape(const MemoryOptions& options, const PackingGroup& packing) {
  ClusterShape cluster = GroupShape(packing, /*reuse=*/true);
  cluster.split = options.shape.cp > 1;
  return cluster;
}

// The seconds of Phase B of one member alone, in so many waves.
double MemberSeconds(const MemoryOptions& options, const PackingGroup& packing, const PackingMember& member,
                     v1::TapePolicy policy, int64_t waves) {
  const ClusterShape one = {.prefix_rows = {packing.prefix_rows},
                            .members = {{.rows = member.rows, .prefix_rows = packing.prefix_rows}}};
  const ClusterWorkSums sums(options.shape, one);
  return Seconds(options.forward_only ? sums.SuffixForwardOnly(waves) : sums.Suffix(policy, waves), options.rates);
}

}  // namespace

PartBytes PartBytesOf(const ByteShape& shape, int64_t prefix_rows, bool forward_only) {
  const int64_t elements = 2 * shape.config.num_layers * prefix_rows * shape.config.kv_size();
  return {.kv = elements * shape.run_bytes, .gradients = forward_only ? 0 : elements * shape.accumulate_bytes};
}

PartSeconds PartSecondsOf(const MemoryOptions& options, const ByteShape& shape, int64_t prefix_rows) {
  const PartBytes bytes = PartBytesOf(shape, prefix_rows, options.forward_only);
  const double messages_s = static_cast<double>(2 * shape.config.num_layers + 1) * options.rates[kPartMessage];
  PartSeconds seconds = {.send_s = messages_s + static_cast<double>(bytes.kv) * options.rates[kPartByte]};
  if (!options.forward_only) {
    seconds.return_s = messages_s + static_cast<double>(bytes.gradients) * options.rates[kPartByte];
  }
  return seconds;
}

bool MaySplit(MemoryChooser& chooser, const PackingGroup& packing) {
  if (!packing.reuse || packing.prefix_rows == 0 || packing.members.size() < 2) return false;
  return chooser.options().shape.cp == 1 || chooser.Choose(SplitShape(chooser.options(), packing)) != nullptr;
}

SplitCosts SplitCostsOf(MemoryChooser& chooser, const PackingGroup& packing) {
  const MemoryOptions& options = chooser.options();
  const std::shared_ptr<const MemoryChoice> choice = chooser.Choose(SplitShape(options, packing));
  SplitCosts costs;
  if (choice == nullptr) {
    costs.rollouts_s.resize(packing.members.size());
    return costs;
  }
  costs.forward_s = choice->seconds.prefix_forward;
  costs.backward_s = choice->seconds.prefix_backward;
  const v1::TapePolicy policy = choice->way.suffix_policy;
  for (const PackingMember& member : packing.members) {
    costs.rollouts_s.push_back(MemberSeconds(options, packing, member, policy, /*waves=*/0));
  }
  // Waves are shared, so their seconds are everyone's in proportion.
  const double alone = std::accumulate(costs.rollouts_s.begin(), costs.rollouts_s.end(), 0.0);
  for (double& seconds : costs.rollouts_s) seconds *= choice->seconds.suffix / alone;
  const PackingMember& first = packing.members[0];
  costs.part_s = MemberSeconds(options, packing, first, policy, /*waves=*/1) -
                 MemberSeconds(options, packing, first, policy, /*waves=*/0);
  const PartSeconds part = PartSecondsOf(options, options.shape, packing.prefix_rows);
  costs.send_s = part.send_s;
  costs.return_s = part.return_s;
  costs.returns = !options.forward_only;
  return costs;
}

PackingGroup PartOf(const PackingGroup& packing, const std::vector<uint32_t>& members, bool borrowed) {
  PackingGroup part = {.group = packing.group,
                       .uid = packing.uid,
                       .prefix_rows = packing.prefix_rows,
                       .reuse = true,
                       .members = {},
                       .borrowed = borrowed,
                       .split = true};
  for (const uint32_t member : members) part.members.push_back(packing.members.at(member));
  return part;
}

}  // namespace stemma::server
