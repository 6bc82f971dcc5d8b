#include "server/planner/cost_model.h"

#include <algorithm>
#include <numeric>

#include "common/base/round_up.h"
#include "common/cost/block_cost.h"
#include "common/cost/context_parallel_cost.h"
#include "common/cost/context_rows.h"
#include "common/cost/context_share.h"
#include "common/cost/pipeline_cost.h"
#include "common/cost/tape_policy.h"
#include "common/cost/tensor_parallel_cost.h"
#include "server/planner/piece_sums.h"

namespace stemma::server {
namespace {

// A block of scores in backward, in those of forward: five small products for two, by the ops' own seconds.
constexpr double kBackwardScoreBlock = 2.4;

void AddForward(const FlopParts& parts, Work& work) {
  work[kLinear] += parts.linear;
  work[kAttentionForward] += parts.attention;
  work[kHead] += parts.head;
}

void AddBackward(const FlopParts& parts, Work& work) {
  work[kLinear] += 2 * parts.linear;
  work[kAttentionBackward] += 2 * parts.attention;
  work[kHead] += 2 * parts.head;
}

// What is sent in `passes` like this one, which together have its rows: the rounding of each is left out.
void AddSent(const TensorSentBytes& sent, int64_t passes, Work& work) {
  work[kTensorByte] += static_cast<double>(sent.total());
  work[kTensorCollective] += static_cast<double>(passes * sent.row_collectives + sent.head_collectives);
}

void AddSent(const ContextSentBytes& sent, int64_t rounds, Work& work) {
  work[kContextByte] += static_cast<double>(rounds * sent.total());
  work[kContextCollective] += static_cast<double>(rounds * sent.collectives);
}

// What goes to the next stage, and back to the one before.
void AddForwardSent(const PipelineSentBytes& sent, int64_t passes, Work& work) {
  work[kStageByte] += static_cast<double>(sent.forward);
  work[kStageMessage] += static_cast<double>(passes * sent.forward_messages);
}
void AddBackwardSent(const PipelineSentBytes& sent, int64_t passes, Work& work) {
  work[kStageByte] += static_cast<double>(sent.backward);
  work[kStageMessage] += static_cast<double>(passes * sent.backward_messages);
}

// The model's last layer has only K/V of a prefix.
double FullLayers(const ByteShape& s) { return static_cast<double>(s.full_layers()); }
double AllLayers(const ModelConfig& c) { return static_cast<double>(c.num_layers); }

double OfLastStage(const ByteShape& s, Block block) { return s.last_stage ? ForwardCost(s.config, block).weights : 0; }

// Elements merged of so many rows, whose attention is of two parts, themselves and earlier rows.
double MergedElements(const ByteShape& s, int64_t rows) {
  return static_cast<double>(rows) * static_cast<double>(s.full_layers() * s.config.q_size());
}

double HeadLayers(const ModelConfig& c, int64_t layers) {
  return static_cast<double>(c.num_heads) * static_cast<double>(layers);
}

// Blocks of scores of one head and layer, forward. `begin`: the prefix's first row among the packed ones.
double ScoreBlocksOf(int64_t begin, int64_t rows, int64_t block_rows) {
  const int64_t step = block_rows == 0 ? begin + rows : block_rows;
  double blocks = 0;
  for (int64_t row = begin; row < begin + rows;) {
    const int64_t end = std::min(begin + rows, (row / step + 1) * step);
    blocks += CausalScoreBlocks(end - row) + AncestorScoreBlocks(end - row, row - begin);
    row = end;
  }
  return blocks;
}

double MemberScoreBlocks(const ByteShape& s, const MemberShape& member) {
  const ModelConfig& c = s.config;
  const double split = CausalScoreBlocks(member.rows) + AncestorScoreBlocks(member.rows, member.prefix_rows);
  if (!member.dense) return split * HeadLayers(c, c.num_layers);
  // In the last layer the rows before the last prompt token are a trajectory's own ancestor.
  return CausalScoreBlocks(member.prefix_rows + member.rows) * HeadLayers(c, s.full_layers()) +
         split * HeadLayers(c, c.num_layers - s.full_layers());
}

}  // namespace

const std::array<const char*, kNumRates> kRateNames = {
    "linear",       "attention_forward",  "attention_backward", "head", "element",    "merge", "wave", "parameter",
    "copy",         "wave_backward",      "score_block",        "sent", "collective",  // over tp
    "sent_context", "collective_context",                                              // over cp
    "sent_stage",   "message_stage",                                                   // over pp
    "sent_data",    "collective_data",                                                 // over dp
    "sent_part",    "message_part"};

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

double Seconds(const Work& work, const Rates& rates) {
  return std::inner_product(work.units.begin(), work.units.end(), rates.seconds.begin(), 0.0);
}

PredictedSeconds Seconds(const PhaseWork& work, const Rates& rates) {
  const PredictedSeconds seconds = {Seconds(work.prefix_forward, rates), Seconds(work.suffix, rates),
                                    Seconds(work.prefix_backward, rates)};
  return HideCopies(seconds, work.prefix_forward[kCopy] * rates[kCopy], work.prefix_backward[kCopy] * rates[kCopy],
                    rates);
}

PredictedSeconds HideCopies(PredictedSeconds seconds, double copy_out, double copy_in, const Rates& rates) {
  if (!rates.copies_overlap) return seconds;
  // Copies out run beside A and the first half of B, copies in beside the second half and C.
  seconds.prefix_forward -= std::min(copy_out, seconds.prefix_forward - copy_out + seconds.suffix / 2);
  seconds.prefix_backward -= std::min(copy_in, seconds.prefix_backward - copy_in + seconds.suffix / 2);
  return seconds;
}

int64_t PackedPrefixRows(const ClusterShape& cluster) {
  return std::accumulate(cluster.prefix_rows.begin(), cluster.prefix_rows.end(), int64_t{0});
}

ClusterWorkSums::ClusterWorkSums(const ByteShape& shape, const ClusterShape& cluster)
    : ClusterWorkSums(shape, cluster, {}) {}

ClusterWorkSums::ClusterWorkSums(const ByteShape& shape, const ClusterShape& cluster,
                                 const std::vector<uint32_t>& dealt)
    : shape_(shape),
      cluster_(cluster),
      layer_(LayerForwardCost(shape.config, shape.tp)),
      prefix_weights_(FullLayers(shape) * layer_.read + OfLastStage(shape, Block::kKeyValue)),
      wave_weights_(AllLayers(shape.config) * layer_.read + OfLastStage(shape, Block::kHead)) {
  ranks_.resize(dealt.empty() ? 1 : static_cast<size_t>(shape.cp));
  for (size_t i = 0; i < cluster.members.size(); ++i) {
    const MemberShape& member = cluster.members[i];
    if (!member.is_cut()) {
      AddMember(member, ranks_[dealt.empty() ? 0 : dealt[i]]);
      continue;
    }
    AddCutMember(member);
  }
  for (Members& members : ranks_) CloseMembers(members);
}

void ClusterWorkSums::AddMember(const MemberShape& member, Members& members) const {
  members.suffixes.Add(member.prefix_rows, member.rows);
  // A dense trajectory is its prefix and its suffix: nothing else is shared, and the same rows are pruned.
  if (member.dense) members.own_prefixes.Add(0, member.prefix_rows);
  if (!member.dense && member.prefix_rows > 0) members.merged_rows += static_cast<double>(member.rows);
  members.score_blocks += MemberScoreBlocks(shape_, member);
  members.head_chunks_again += HeadChunksAgain(shape_, member);
}

// Each rank has as much of everything as the one that has most of it.
void ClusterWorkSums::AddCutMember(const MemberShape& member) {
  const std::vector<ContextPiece> pieces = DealCutRows(member.rows, member.cut_ranks);
  const PieceSums most = MostOf(SumsOfRanks(pieces, member.cut_ranks, member.prefix_rows));
  for (Members& members : ranks_) {
    members.suffixes.rows += most.segments.rows;
    members.suffixes.pairs += most.segments.pairs;
    members.head_chunks_again += HeadChunksAgain(shape_, member);
    members.merged_rows += most.merged_rows;
    members.score_blocks += most.score_blocks * HeadLayers(shape_.config, shape_.config.num_layers);
    members.forward_sent += CutForwardContextSent(shape_, member.rows);
    members.backward_sent += CutBackwardContextSent(shape_, member.rows);
  }
}

void ClusterWorkSums::CloseMembers(Members& members) const {
  const ModelConfig& c = shape_.config;
  members.parts = SuffixParts(shape_, members.suffixes);
  const FlopParts own = PrefixParts(shape_, members.own_prefixes);
  members.parts.linear += own.linear;
  members.parts.attention += own.attention;
  members.layer_rows = members.suffixes.rows * AllLayers(c) + members.own_prefixes.rows * FullLayers(shape_);
}

const ClusterWorkSums::OwnRows& ClusterWorkSums::OwnRowsOf(const PrefixShape& prefix) const {
  for (const OwnRows& known : own_rows_) {
    if (known.block_rows == prefix.block_rows) return known;
  }
  OwnRows& rows = own_rows_.emplace_back(SharesRows(shape_, prefix) ? SharedRows(prefix) : AllRows(prefix));
  rows.block_rows = prefix.block_rows;
  rows.parts = PrefixParts(shape_, rows.products);
  rows.score_blocks *= HeadLayers(shape_.config, shape_.full_layers());
  rows.weights_passed = static_cast<double>(NumBlocks(prefix)) * prefix_weights_;
  return rows;
}

ClusterWorkSums::OwnRows ClusterWorkSums::AllRows(const PrefixShape& prefix) const {
  OwnRows all;
  int64_t begin = 0;
  for (const int64_t rows : cluster_.prefix_rows) {
    all.segments.Add(0, rows);
    all.score_blocks += ScoreBlocksOf(begin, rows, prefix.block_rows);
    begin += rows;
  }
  all.products = all.segments;
  all.products.rows += static_cast<double>(RowPadding(shape_, begin, prefix.block_rows));
  if (prefix.block_rows > 0) {
    all.merged_elements = MergedElements(shape_, std::max<int64_t>(0, prefix.rows - prefix.block_rows));
  }
  return all;
}

// Each number is that of the rank where it is largest.
ClusterWorkSums::OwnRows ClusterWorkSums::SharedRows(const PrefixShape& prefix) const {
  const std::shared_ptr<const ContextShare> share = ShareOf(shape_, prefix);
  const std::vector<PieceSums> ranks = SumsOfRanks(share->pieces(), shape_.cp, /*ancestor_rows=*/0);
  const PieceSums most = MostOf(ranks);
  OwnRows own;
  own.segments = own.products = most.segments;
  own.products.rows = 0;  // with the rows by which products are rounded up
  for (int64_t rank = 0; rank < shape_.cp; ++rank) {
    int64_t padding = 0;
    for (size_t block = 0; block < share->blocks().size(); ++block) {
      padding += RowPadding(shape_, share->RowsOf(block, rank));
    }
    const double rows = ranks[static_cast<size_t>(rank)].segments.rows + static_cast<double>(padding);
    own.products.rows = std::max(own.products.rows, rows);
  }
  own.merged_elements = MergedElements(shape_, static_cast<int64_t>(most.merged_rows));
  own.score_blocks = most.score_blocks;
  return own;
}

Work ClusterWorkSums::Regather(const PrefixShape& prefix, int64_t rounds, bool forward_only) const {
  Work work;
  AddSent(RoundForwardContextSent(shape_, prefix), rounds, work);
  if (!forward_only) AddSent(RoundBackwardContextSent(shape_, prefix), rounds, work);
  return work;
}

Work ClusterWorkSums::PrefixForward(const PrefixShape& prefix) const {
  const OwnRows& own = OwnRowsOf(prefix);
  Work work;
  AddForward(own.parts, work);
  work[kElement] = own.segments.rows * FullLayers(shape_) * layer_.elements;
  work[kMerge] = own.merged_elements;
  work[kScoreBlock] = own.score_blocks;
  work[kWave] = own.weights_passed;
  if (prefix.offload) work[kCopy] = static_cast<double>(HostTapeBytes(shape_, prefix));
  AddSent(PrefixForwardTensorSent(shape_, prefix), 1, work);
  AddSent(PrefixForwardContextSent(shape_, prefix), 1, work);
  AddForwardSent(PrefixPipelineSent(shape_, prefix), 1, work);
  return work;
}

Work ClusterWorkSums::PrefixBackward(const PrefixShape& prefix) const {
  const ModelConfig& c = shape_.config;
  const OwnRows& own = OwnRowsOf(prefix);
  Work work;
  AddBackward(own.parts, work);
  AddForward(PrefixRecomputeParts(shape_, own.products, prefix.policy), work);
  const double elements = 2 * layer_.elements + LayerRecomputedCost(c, prefix.policy, shape_.tp).elements;
  work[kElement] = own.segments.rows * FullLayers(shape_) * elements;
  work[kMerge] = own.merged_elements;
  const double forwards = KeepsAttention(prefix.policy) ? 0 : 1;
  work[kScoreBlock] = (kBackwardScoreBlock + forwards) * own.score_blocks;
  work[kWaveBackward] = own.weights_passed;
  if (!KeepsInputs(prefix.policy)) work[kWave] = work[kWaveBackward];
  if (prefix.offload) work[kCopy] = static_cast<double>(HostTapeBytes(shape_, prefix));
  AddSent(PrefixBackwardTensorSent(shape_, prefix), 1, work);
  AddSent(PrefixBackwardContextSent(shape_, prefix), 1, work);
  AddBackwardSent(PrefixPipelineSent(shape_, prefix), 1, work);
  return work;
}

Work ClusterWorkSums::SuffixForwardOnly(const WavePasses& waves, size_t rank) const {
  return SuffixForward(waves, /*entropy=*/false, ranks_[rank]);
}

Work ClusterWorkSums::SuffixForwardOfStep(const WavePasses& waves, size_t rank) const {
  return SuffixForward(waves, /*entropy=*/true, ranks_[rank]);
}

// Returns the forward FLOPs of the rows by which waves are rounded up.
FlopParts ClusterWorkSums::Rounding(const WavePasses& waves) const {
  FlopParts parts;
  parts.linear = 2 * layer_.weights * FullLayers(shape_) * static_cast<double>(waves.layer_padding);
  if (!shape_.last_stage) return parts;
  parts.linear += 2 * layer_.weights * static_cast<double>(waves.last_padding);
  parts.linear += 2 * OfLastStage(shape_, Block::kKeyValue) * static_cast<double>(waves.kv_only_padding);
  parts.head = 2 * OfLastStage(shape_, Block::kHead) * static_cast<double>(waves.head_padding);
  return parts;
}

// Returns the same of what a policy recomputes in a layer, and of K and V where they are all that is wanted.
FlopParts ClusterWorkSums::RecomputedRounding(const WavePasses& waves, const BlockCost& layer,
                                              const BlockCost& key_value) const {
  FlopParts parts;
  parts.linear = 2 * layer.weights * FullLayers(shape_) * static_cast<double>(waves.layer_padding);
  if (!shape_.last_stage) return parts;
  parts.linear += 2 * layer.weights * static_cast<double>(waves.last_padding);
  parts.linear += 2 * key_value.weights * static_cast<double>(waves.kv_only_padding);
  return parts;
}

// Counts the head's forward of rows whose logits were there before their whole response's gradient was known.
void ClusterWorkSums::AddHeadAgain(const Members& members, Work& work) const {
  const double weights = OfLastStage(shape_, Block::kHead);
  const auto chunks = static_cast<double>(members.head_chunks_again);
  work[kHead] += 2 * weights * chunks * static_cast<double>(RoundUp(shape_.head_chunk_rows, shape_.row_quantum));
  // Elsewhere what the head's chunks read again is in the rates.
  if (shape_.row_quantum > 1) work[kWave] += chunks * weights;
}

// Counts one block more for what is done around each wave's call over its prefixes, as around a span's.
double ClusterWorkSums::ScoreBlocks(const WavePasses& waves, const Members& members) const {
  if (members.merged_rows == 0) return members.score_blocks;
  return members.score_blocks +
         static_cast<double>(waves.prefix_waves) * HeadLayers(shape_.config, shape_.config.num_layers);
}

Work ClusterWorkSums::SuffixForward(const WavePasses& waves, bool entropy, const Members& members) const {
  const ModelConfig& c = shape_.config;
  Work work;
  AddForward(members.parts, work);
  AddForward(Rounding(waves), work);
  work[kElement] = members.layer_rows * layer_.elements;
  work[kMerge] = members.merged_rows * AllLayers(c) * static_cast<double>(c.q_size());
  work[kScoreBlock] = ScoreBlocks(waves, members);
  work[kWave] = static_cast<double>(waves.waves) * wave_weights_ +
                static_cast<double>(waves.head_chunks - waves.waves) * OfLastStage(shape_, Block::kHead) +
                static_cast<double>(waves.kv_only_products) * OfLastStage(shape_, Block::kKeyValue);
  const auto apart = static_cast<int64_t>(members.own_prefixes.rows);
  const int64_t rows = static_cast<int64_t>(members.suffixes.rows) + apart;
  if (shape_.tp > 1) AddSent(WaveForwardTensorSent(shape_, rows, apart, entropy), waves.waves, work);
  AddForwardSent(WavePipelineSent(shape_, rows), waves.waves, work);
  AddSent(members.forward_sent, 1, work);
  return work;
}

Work ClusterWorkSums::Suffix(v1::TapePolicy policy, const WavePasses& waves, size_t rank) const {
  const ModelConfig& c = shape_.config;
  const Members& members = ranks_[rank];
  Work work = SuffixForward(waves, /*entropy=*/true, members);
  AddBackward(members.parts, work);
  AddBackward(Rounding(waves), work);
  AddForward(SuffixRecomputeParts(c, members.suffixes, policy), work);
  AddForward(PrefixRecomputeParts(shape_, members.own_prefixes, policy), work);
  const BlockCost recomputed = LayerRecomputedCost(c, policy, shape_.tp);
  AddForward(RecomputedRounding(waves, recomputed, KeyValueRecomputedCost(c, policy)), work);
  work[kElement] += members.layer_rows * (2 * layer_.elements + recomputed.elements);
  work[kScoreBlock] += (kBackwardScoreBlock + (KeepsAttention(policy) ? 0 : 1)) * ScoreBlocks(waves, members);
  work[kWaveBackward] = work[kWave];
  AddHeadAgain(members, work);
  const auto apart = static_cast<int64_t>(members.own_prefixes.rows);
  const int64_t rows = static_cast<int64_t>(members.suffixes.rows) + apart;
  if (shape_.tp > 1) AddSent(WaveBackwardTensorSent(shape_, rows, apart, policy), waves.waves, work);
  AddBackwardSent(WavePipelineSent(shape_, rows), waves.waves, work);
  AddSent(members.backward_sent, 1, work);
  return work;
}

PhaseWork ClusterWork(const ByteShape& shape, const ClusterShape& cluster, const PrefixShape& prefix,
                      v1::TapePolicy suffix_policy, const WavePasses& waves) {
  const ClusterWorkSums sums(shape, cluster);
  PhaseWork work = {.prefix_forward = {}, .suffix = sums.Suffix(suffix_policy, waves), .prefix_backward = {}};
  if (prefix.rows == 0) return work;
  work.prefix_forward = sums.PrefixForward(prefix);
  work.prefix_backward = sums.PrefixBackward(prefix);
  return work;
}

PhaseWork ForwardClusterWork(const ByteShape& shape, const ClusterShape& cluster, const WavePasses& waves) {
  const ClusterWorkSums sums(shape, cluster);
  PhaseWork work = {.prefix_forward = {}, .suffix = sums.SuffixForwardOnly(waves), .prefix_backward = {}};
  const PrefixShape prefix = {.rows = PackedPrefixRows(cluster)};
  if (prefix.rows > 0) work.prefix_forward = sums.PrefixForward(prefix);
  return work;
}

Work ApplyWork(const ModelConfig& config) {
  Work work;
  work[kParameter] = static_cast<double>(config.num_parameters());
  return work;
}

}  // namespace stemma::server
