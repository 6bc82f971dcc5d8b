#include "server/core/cost_model.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/match.h"
#include "common/tape_policy.h"

namespace stemma {
namespace {

// FLOPs of common/cost.h in their parts, per direction.
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

double Passes(const ModelConfig& c, int64_t count) {
  return static_cast<double>(count) * static_cast<double>(c.num_parameters());
}

Work PrefixForwardWork(const ByteShape& shape, const ClusterShape& cluster, const PrefixShape& prefix) {
  const ModelConfig& c = shape.config;
  Work work;
  for (const int64_t rows : cluster.prefix_rows) {
    AddForward(PrefixParts(c, rows), work);
    work[kElement] += PrefixRowLayers(c, rows) * RowElements(c);
  }
  work[kMerge] = MergedRows(prefix) * static_cast<double>((c.num_layers - 1) * c.q_size());
  work[kWave] = Passes(c, Blocks(prefix));
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
  work[kWave] = Passes(c, (KeepsInputs(prefix.policy) ? 3 : 4) * Blocks(prefix));
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
  if (!backward) return;
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
}

}  // namespace

const std::array<const char*, kNumRates> kRateNames = {
    "linear", "attention_forward", "attention_backward", "head", "element", "merge", "wave", "parameter", "copy"};

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

Rates DefaultRates(const std::string& dtype, int64_t threads, const std::string& device) {
  Rates rates;
  if (absl::StartsWith(device, "cuda")) {  // H200, bf16: matrix products 790 TFLOP/s, 4.3 TB/s, 55 GB/s to the host
    const double factor = dtype == "bf16" ? 1 : 10;
    rates.copies_overlap = true;
    rates.seconds = {factor / 7.9e14, factor / 6.2e14, factor / 4.4e14, factor / 7.9e14, 4 / 4.3e12,
                     8 / 4.3e12,      6e-13,           2.8e-11,         1 / 55e9};
    return rates;
  }
  // One core with AVX-512 (tests/server/core/recorded_phases.json): 150 GFLOP/s of fp32 matrix products, half of it in
  // fp64 and, upcast, in bf16.
  const double factor = (dtype == "fp32" ? 1.0 : 2.0) / static_cast<double>(std::max<int64_t>(1, threads));
  rates.seconds = {factor / 150e9, factor / 80e9, factor / 110e9, factor / 160e9, factor * 1.1e-9,
                   factor * 4e-9,  0.12e-9,       3e-9,           1 / 4e9};
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
  work.suffix[kWave] = Passes(shape.config, 4 * waves);
  return work;
}

PhaseWork ForwardClusterWork(const ByteShape& shape, const ClusterShape& cluster, int64_t waves) {
  PhaseWork work;
  const PrefixShape prefix = {.rows = PackedPrefixRows(cluster)};
  if (prefix.rows > 0) work.prefix_forward = PrefixForwardWork(shape, cluster, prefix);
  for (const MemberShape& member : cluster.members) AddMember(shape.config, member, /*backward=*/false, work.suffix);
  work.suffix[kWave] = Passes(shape.config, waves);
  return work;
}

Work ApplyWork(const ModelConfig& config) {
  Work work;
  work[kParameter] = static_cast<double>(config.num_parameters());
  return work;
}

}  // namespace stemma
