#include "server/planner/cost_model.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/match.h"
#include "common/cost/state_bytes.h"
#include "common/cost/tape_policy.h"

namespace stemma::server {
namespace {

// A block of scores in backward, in those of forward: five small products for two, by the ops' own seconds.
constexpr double kBackwardScoreBlock = 1.5;

// FLOPs of common/cost/cost.h in their parts, per direction.
struct FlopParts {
  double linear_forward = 0, attention_forward = 0, head_forward = 0;
};

double LayerParameters(const ModelConfig& c) {
  return static_cast<double>(c.hidden_size) * static_cast<double>(2 * c.q_size() + 2 * c.kv_size() + 3 * c.ffn_size);
}

FlopParts PrefixParts(const ModelConfig& c, int64_t rows) {
  const double r = static_cast<double>(rows), layers = static_cast<double>(c.num_layers - 1);
  const double kv = 2.0 * static_cast<double>(c.hidden_size) * static_cast<double>(c.kv_size());
  return {.linear_forward = 2 * r * (layers * LayerParameters(c) + kv),
          .attention_forward = layers * 4 * static_cast<double>(c.q_size()) * r * (r + 1) / 2};
}

FlopParts SuffixParts(const ModelConfig& c, int64_t prefix_rows, int64_t rows) {
  const double r = static_cast<double>(rows), layers = static_cast<double>(c.num_layers);
  const double pairs = r * static_cast<double>(prefix_rows) + r * (r + 1) / 2;
  return {.linear_forward = 2 * r * layers * LayerParameters(c),
          .attention_forward = layers * 4 * static_cast<double>(c.q_size()) * pairs,
          .head_forward = 2 * r * static_cast<double>(c.hidden_size) * static_cast<double>(c.vocab_size)};
}

void AddForward(const FlopParts& parts, Work& work) {
  work[kLinear] += parts.linear_forward;
  work[kAttentionForward] += parts.attention_forward;
  work[kHead] += parts.head_forward;
}

void AddBackward(const FlopParts& parts, Work& work) {
  work[kLinear] += 2 * parts.linear_forward;
  work[kAttentionBackward] += 2 * parts.attention_forward;
  work[kHead] += 2 * parts.head_forward;
}

// Elements that a row's norms, RoPE and SwiGLU touch in one layer's forward; its backward touches about twice as many.
double RowElements(const ModelConfig& c) {
  return static_cast<double>(4 * c.hidden_size + 2 * c.q_size() + 3 * c.ffn_size);
}

double RecomputedElements(const ModelConfig& c, v1::TapePolicy policy) {
  if (KeepsElementwise(policy)) return 0;
  return KeepsQueries(policy) ? static_cast<double>(4 * c.hidden_size + 3 * c.ffn_size) : RowElements(c);
}

double RowLayers(const ModelConfig& c, int64_t rows) {
  return static_cast<double>(rows) * static_cast<double>(c.num_layers);
}
// The last layer of a prefix has only K/V.
double PrefixRowLayers(const ModelConfig& c, int64_t rows) {
  return static_cast<double>(rows) * static_cast<double>(c.num_layers - 1);
}

// What a backward makes again: `attention` is the forward's, needed where the policy dropped its output.
void AddRecompute(const Flops& recompute, double attention, double elements, v1::TapePolicy policy, Work& work) {
  const double again = KeepsAttention(policy) ? 0 : std::min(attention, recompute.total());
  work[kAttentionForward] += again;
  work[kLinear] += recompute.total() - again;
  work[kElement] += elements;
}

int64_t Blocks(const PrefixShape& prefix) {
  if (prefix.rows == 0) return 0;
  return prefix.block_rows == 0 ? 1 : (prefix.rows + prefix.block_rows - 1) / prefix.block_rows;
}

// Rows whose attention is of two parts, themselves and earlier blocks.
double MergedRows(const PrefixShape& prefix) {
  return prefix.block_rows == 0 ? 0 : static_cast<double>(std::max<int64_t>(0, prefix.rows - prefix.block_rows));
}

// Weights of the products that a block of a prefix, and a wave, runs through once.
double PrefixWeights(const ModelConfig& c) {
  return static_cast<double>(c.num_layers - 1) * LayerParameters(c) +
         2.0 * static_cast<double>(c.hidden_size) * static_cast<double>(c.kv_size());
}
double WaveWeights(const ModelConfig& c) {
  return static_cast<double>(c.num_layers) * LayerParameters(c) +
         static_cast<double>(c.hidden_size) * static_cast<double>(c.vocab_size);
}

double HeadLayers(const ModelConfig& c, int64_t layers) {
  return static_cast<double>(c.num_heads) * static_cast<double>(layers);
}

// Blocks of scores of all heads and layers, forward. `begin`: the prefix's first row among the packed ones.
double PrefixScoreBlocks(const ModelConfig& c, int64_t begin, int64_t rows, int64_t block_rows) {
  const int64_t step = block_rows == 0 ? begin + rows : block_rows;
  double blocks = 0;
  for (int64_t row = begin; row < begin + rows;) {
    const int64_t end = std::min(begin + rows, (row / step + 1) * step);
    blocks += CausalScoreBlocks(end - row) + AncestorScoreBlocks(end - row, row - begin);
    row = end;
  }
  return blocks * HeadLayers(c, c.num_layers - 1);
}

double PrefixScoreBlocks(const ModelConfig& c, const ClusterShape& cluster, int64_t block_rows) {
  double blocks = 0;
  int64_t begin = 0;
  for (const int64_t rows : cluster.prefix_rows) {
    blocks += PrefixScoreBlocks(c, begin, rows, block_rows);
    begin += rows;
  }
  return blocks;
}

double MemberScoreBlocks(const ModelConfig& c, const MemberShape& member) {
  const double split = CausalScoreBlocks(member.rows) + AncestorScoreBlocks(member.rows, member.prefix_rows);
  if (!member.dense) return split * HeadLayers(c, c.num_layers);
  // In the last layer the rows before the last prompt token are a trajectory's own ancestor.
  return CausalScoreBlocks(member.prefix_rows + member.rows) * HeadLayers(c, c.num_layers - 1) +
         split * HeadLayers(c, 1);
}

Work PrefixForwardWork(const ByteShape& shape, const ClusterShape& cluster, const PrefixShape& prefix) {
  const ModelConfig& c = shape.config;
  Work work;
  for (const int64_t rows : cluster.prefix_rows) {
    AddForward(PrefixParts(c, rows), work);
    work[kElement] += PrefixRowLayers(c, rows) * RowElements(c);
  }
  work[kMerge] = MergedRows(prefix) * static_cast<double>((c.num_layers - 1) * c.q_size());
  work[kScoreBlock] = PrefixScoreBlocks(c, cluster, prefix.block_rows);
  work[kWave] = static_cast<double>(Blocks(prefix)) * PrefixWeights(c);
  if (prefix.offload) work[kCopy] = static_cast<double>(HostTapeBytes(shape, prefix));
  return work;
}

Work PrefixBackwardWork(const ByteShape& shape, const ClusterShape& cluster, const PrefixShape& prefix) {
  const ModelConfig& c = shape.config;
  Work work;
  for (const int64_t rows : cluster.prefix_rows) {
    const FlopParts parts = PrefixParts(c, rows);
    AddBackward(parts, work);
    work[kElement] += 2 * PrefixRowLayers(c, rows) * RowElements(c);
    const PrefixShape one = {.rows = rows, .block_rows = prefix.block_rows, .policy = prefix.policy};
    AddRecompute(PrefixRecomputeFlops(c, one), parts.attention_forward,
                 PrefixRowLayers(c, rows) * RecomputedElements(c, prefix.policy), prefix.policy, work);
  }
  work[kMerge] = MergedRows(prefix) * static_cast<double>((c.num_layers - 1) * c.q_size());
  const double forwards = KeepsAttention(prefix.policy) ? 0 : 1;
  work[kScoreBlock] = (kBackwardScoreBlock + forwards) * PrefixScoreBlocks(c, cluster, prefix.block_rows);
  work[kWaveBackward] = static_cast<double>(Blocks(prefix)) * PrefixWeights(c);
  if (!KeepsInputs(prefix.policy)) work[kWave] = work[kWaveBackward];
  if (prefix.offload) work[kCopy] = static_cast<double>(HostTapeBytes(shape, prefix));
  return work;
}

// A dense trajectory is its prefix and its suffix: nothing else is shared, and the same rows are pruned.
void AddMember(const ModelConfig& c, const MemberShape& member, bool backward, Work& work) {
  const FlopParts suffix = SuffixParts(c, member.prefix_rows, member.rows);
  FlopParts prefix;
  double row_layers = RowLayers(c, member.rows);
  if (member.dense) {
    prefix = PrefixParts(c, member.prefix_rows);
    row_layers += PrefixRowLayers(c, member.prefix_rows);
  } else if (member.prefix_rows > 0) {
    work[kMerge] += RowLayers(c, member.rows) * static_cast<double>(c.q_size());
  }
  AddForward(suffix, work);
  AddForward(prefix, work);
  work[kElement] += row_layers * RowElements(c);
  const double score_blocks = MemberScoreBlocks(c, member);
  work[kScoreBlock] += score_blocks;
  if (!backward) return;
  work[kScoreBlock] += kBackwardScoreBlock * score_blocks;
  AddBackward(suffix, work);
  AddBackward(prefix, work);
  work[kElement] += 2 * row_layers * RowElements(c);
}

void AddMemberRecompute(const ModelConfig& c, const MemberShape& member, v1::TapePolicy policy, Work& work) {
  if (KeepsElementwise(policy)) return;
  const int64_t own_prefix = member.dense ? member.prefix_rows : 0;
  const int64_t rows = member.rows + own_prefix;
  const FlopParts suffix = SuffixParts(c, member.prefix_rows, member.rows);
  const double attention =
      suffix.attention_forward + (own_prefix > 0 ? PrefixParts(c, own_prefix).attention_forward : 0);
  AddRecompute(SuffixRecomputeFlops(c, member.prefix_rows - own_prefix, rows, policy), attention,
               RowLayers(c, rows) * RecomputedElements(c, policy), policy, work);
  if (!KeepsAttention(policy)) work[kScoreBlock] += MemberScoreBlocks(c, member);
}

// With optimizer states on the device.
Rates DeviceRates(const std::string& dtype, int64_t threads, const std::string& device) {
  Rates rates;
  if (absl::StartsWith(device, "cuda")) {  // H200, bf16: matrix products 790 TFLOP/s, 4.3 TB/s, 55 GB/s to the host
    const double factor = dtype == "bf16" ? 1 : 10;
    rates.copies_overlap = true;
    // A fused kernel's blocks of scores are in its FLOPs' rate.
    rates.seconds = {factor / 7.9e14, factor / 6.2e14, factor / 4.4e14, factor / 7.9e14, 4 / 4.3e12,       8 / 4.3e12,
                     6e-13,           2.8e-11,         1 / 55e9,        1.8e-12,         /*score_block=*/0};
    return rates;
  }
  // One core with AVX-512: 150 GFLOP/s of fp32 matrix products, half of it in fp64 and, upcast, in bf16. Ratios are
  // those of the ops by themselves in the runs of tests/server/planner/recorded_phases.json: elementwise work is a
  // fiftieth of a step, and cannot be told from matrix products but where a policy makes it again.
  const double factor = (dtype == "fp32" ? 1.0 : 2.0) / static_cast<double>(std::max<int64_t>(1, threads));
  rates.seconds = {factor / 150e9, factor / 125e9, factor / 95e9, factor / 200e9, factor * 0.18e-9, factor * 1.2e-9,
                   0.4e-9,         3e-9,           1 / 8e9,       0.5e-9,         factor * 10e-6};
  return rates;
}

}  // namespace

const std::array<const char*, kNumRates> kRateNames = {
    "linear", "attention_forward", "attention_backward", "head", "element", "merge", "wave", "parameter",
    "copy",   "wave_backward",     "score_block"};

Work& Work::operator+=(const Work& other) {
  for (size_t i = 0; i < units.size(); ++i) units[i] += other.units[i];
  return *this;
}

PhaseWork& PhaseWork::operator+=(const PhaseWork& other) {
  prefix_forward += other.prefix_forward;
  suffix += other.suffix;
  prefix_backward += other.prefix_backward;
  return *this;
}

PredictedSeconds& PredictedSeconds::operator+=(const PredictedSeconds& other) {
  prefix_forward += other.prefix_forward;
  suffix += other.suffix;
  prefix_backward += other.prefix_backward;
  return *this;
}

Rates DefaultRates(const std::string& dtype, int64_t threads, const std::string& device,
                   v1::OptimizerResidency residency) {
  Rates rates = DeviceRates(dtype, threads, device);
  if (residency != v1::HOST) return rates;
  // Each parameter's states come in and go out, beside their update where copies run beside compute.
  const double copies_s = 2.0 * static_cast<double>(OptimizerBytes(dtype)) * rates.seconds[kCopy];
  double& parameter_s = rates.seconds[kParameter];
  parameter_s = rates.copies_overlap ? std::max(parameter_s, copies_s) : parameter_s + copies_s;
  return rates;
}

double Seconds(const Work& work, const Rates& rates) {
  return std::inner_product(work.units.begin(), work.units.end(), rates.seconds.begin(), 0.0);
}

PredictedSeconds Seconds(const PhaseWork& work, const Rates& rates) {
  PredictedSeconds seconds = {Seconds(work.prefix_forward, rates), Seconds(work.suffix, rates),
                              Seconds(work.prefix_backward, rates)};
  if (!rates.copies_overlap) return seconds;
  // Copies out run beside A and the first half of B, copies in beside the second half and C.
  const double copy_out = work.prefix_forward[kCopy] * rates.seconds[kCopy];
  const double copy_in = work.prefix_backward[kCopy] * rates.seconds[kCopy];
  seconds.prefix_forward -= std::min(copy_out, seconds.prefix_forward - copy_out + seconds.suffix / 2);
  seconds.prefix_backward -= std::min(copy_in, seconds.prefix_backward - copy_in + seconds.suffix / 2);
  return seconds;
}

int64_t PackedPrefixRows(const ClusterShape& cluster) {
  return std::accumulate(cluster.prefix_rows.begin(), cluster.prefix_rows.end(), int64_t{0});
}

PhaseWork ClusterWork(const ByteShape& shape, const ClusterShape& cluster, const PrefixShape& prefix,
                      v1::TapePolicy suffix_policy, int64_t waves) {
  PhaseWork work;
  if (prefix.rows > 0) {
    work.prefix_forward = PrefixForwardWork(shape, cluster, prefix);
    work.prefix_backward = PrefixBackwardWork(shape, cluster, prefix);
  }
  for (const MemberShape& member : cluster.members) {
    AddMember(shape.config, member, /*backward=*/true, work.suffix);
    AddMemberRecompute(shape.config, member, suffix_policy, work.suffix);
  }
  work.suffix[kWave] = work.suffix[kWaveBackward] = static_cast<double>(waves) * WaveWeights(shape.config);
  return work;
}

PhaseWork ForwardClusterWork(const ByteShape& shape, const ClusterShape& cluster, int64_t waves) {
  PhaseWork work;
  const PrefixShape prefix = {.rows = PackedPrefixRows(cluster)};
  if (prefix.rows > 0) work.prefix_forward = PrefixForwardWork(shape, cluster, prefix);
  for (const MemberShape& member : cluster.members) AddMember(shape.config, member, /*backward=*/false, work.suffix);
  work.suffix[kWave] = static_cast<double>(waves) * WaveWeights(shape.config);
  return work;
}

Work ApplyWork(const ModelConfig& config) {
  Work work;
  work[kParameter] = static_cast<double>(config.num_parameters());
  return work;
}

}  // namespace stemma::server
