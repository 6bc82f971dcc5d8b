#include "server/planner/wave_passes.h"

#include <algorithm>
#include <utility>

#include "common/base/round_up.h"

namespace stemma::server {
namespace {

int64_t ToTiles(const ByteShape& shape, int64_t rows) { return RoundUp(rows, shape.row_quantum) - rows; }

// Rows of members: those that the head takes, and those of which the last layer has K and V alone.
struct MemberRows {
  explicit MemberRows(std::span<const MemberShape> members) {
    for (const MemberShape& member : members) {
      head += member.own_rows();
      kv_only += member.dense ? member.prefix_rows : 0;
    }
  }
  int64_t head = 0, kv_only = 0;
};

bool Attends(const MemberShape& member) { return !member.dense && member.prefix_rows > 0; }

// Adds the head's chunks of a wave. They end with responses where the loss wants whole ones.
void AddHeadChunks(const ByteShape& shape, std::span<const MemberShape> members, WavePasses& passes) {
  int64_t waiting = 0;
  const auto add = [&](int64_t rows) {
    passes.head_chunks += DivideUp(rows, shape.head_chunk_rows);
    passes.head_padding += RowPadding(shape, rows, shape.head_chunk_rows);
  };
  for (const MemberShape& member : members) {
    const int64_t rows = member.own_rows();
    if (shape.whole_rollouts && waiting > 0 && waiting + rows > shape.head_chunk_rows) add(std::exchange(waiting, 0));
    waiting += rows;
  }
  add(waiting);
}

}  // namespace

int64_t RowPadding(const ByteShape& shape, int64_t rows, int64_t block_rows) {
  if (block_rows == 0) return ToTiles(shape, rows);
  return rows / block_rows * ToTiles(shape, block_rows) + ToTiles(shape, rows % block_rows);
}

int64_t HeadChunksAgain(const ByteShape& shape, const MemberShape& member) {
  return shape.whole_rollouts && member.rows > 0 ? (member.own_rows() - 1) / shape.head_chunk_rows : 0;
}

void AddWave(const ByteShape& shape, std::span<const MemberShape> members, WavePasses& passes) {
  ++passes.waves;
  passes.prefix_waves += std::any_of(members.begin(), members.end(), Attends) ? 1 : 0;
  if (shape.row_quantum == 1) {
    ++passes.head_chunks;
    return;
  }
  const MemberRows rows(members);
  passes.kv_only_products += rows.kv_only > 0 ? 1 : 0;
  passes.layer_padding += RowPadding(shape, rows.head + rows.kv_only);
  passes.last_padding += RowPadding(shape, rows.head);
  passes.kv_only_padding += RowPadding(shape, rows.kv_only);
  AddHeadChunks(shape, members, passes);
}

WavePasses LeastPasses(const ByteShape& shape, std::span<const MemberShape> members, int64_t waves) {
  WavePasses least(waves);
  if (!std::all_of(members.begin(), members.end(), Attends)) {
    least.prefix_waves = std::any_of(members.begin(), members.end(), Attends) ? 1 : 0;
  }
  if (shape.row_quantum == 1) return least;
  const MemberRows rows(members);
  least.head_chunks = std::max(waves, DivideUp(rows.head, shape.head_chunk_rows));
  least.layer_padding = RowPadding(shape, rows.head + rows.kv_only);
  least.last_padding = least.head_padding = RowPadding(shape, rows.head);
  least.kv_only_padding = RowPadding(shape, rows.kv_only);
  return least;
}

}  // namespace stemma::server
