#include "common/cost/pipeline_cost.h"

#include "common/base/round_up.h"

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
  if (stage.first_stage && stage.last_stage) return {};
  const int64_t row_parts = RowsOfRank(stage, prefix, cp_rank).row_parts;
  return BothWays(stage, row_parts * stage.config.hidden_size * stage.run_bytes, NumBlocks(prefix));
}

}  // namespace stemma
