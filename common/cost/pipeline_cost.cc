#include "common/cost/pipeline_cost.h"

#include <algorithm>
#include <memory>

#include "common/base/round_up.h"
#include "common/cost/context_share.h"

namespace stemma {
namespace {

// What goes forward where there is a next stage, and comes back as often where there is one before.
PipelineSentBytes BothWays(const ByteShape& stage, int64_t bytes, int64_t messages) {
  PipelineSentBytes sent;
  if (!stage.last_stage) {
    sent.forward = bytes;
    sent.forward_messages = messages;
  }
  if (!stage.first_stage) {
    sent.backward = bytes;
    sent.backward_messages = messages;
  }
  return sent;
}

}  // namespace

PipelineSentBytes& PipelineSentBytes::operator+=(const PipelineSentBytes& other) {
  forward += other.forward;
  backward += other.backward;
  forward_messages += other.forward_messages;
  backward_messages += other.backward_messages;
  return *this;
}

int64_t RowsBetweenStagesBytes(const ByteShape& shape, int64_t rows) {
  return DivideUp(rows, shape.tp) * shape.config.hidden_size * shape.run_bytes;
}

PipelineSentBytes WavePipelineSent(const ByteShape& stage, int64_t rows) {
  return BothWays(stage, RowsBetweenStagesBytes(stage, rows), 1);
}

PipelineSentBytes PrefixPipelineSent(const ByteShape& stage, const PrefixShape& prefix, int64_t cp_rank) {
  if (prefix.rows == 0 || (stage.first_stage && stage.last_stage)) return {};
  int64_t bytes = 0, blocks = 0;
  if (SharesRows(stage, prefix)) {
    const std::shared_ptr<const ContextShare> share = ShareOf(stage, prefix);
    blocks = static_cast<int64_t>(share->blocks().size());
    if (cp_rank == kLargestCpRank) {
      bytes = share->largest().row_parts * stage.config.hidden_size * stage.run_bytes;
    } else {
      for (size_t b = 0; b < share->blocks().size(); ++b) {
        bytes += RowsBetweenStagesBytes(stage, share->RowsOf(b, cp_rank));
      }
    }
  } else {
    const int64_t block = prefix.block_rows > 0 ? std::min(prefix.block_rows, prefix.rows) : prefix.rows;
    blocks = DivideUp(prefix.rows, block);
    const int64_t rest = prefix.rows % block;
    bytes = prefix.rows / block * RowsBetweenStagesBytes(stage, block) + RowsBetweenStagesBytes(stage, rest);
  }
  return BothWays(stage, bytes, blocks);
}

}  // namespace stemma
