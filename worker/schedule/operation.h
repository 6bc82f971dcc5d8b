// One operation of a rank's program, and what it exchanges with other ranks. Pure; made by worker/schedule/program.h,
// read by worker/engine and by the checker.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace stemma::worker {

enum class OperationKind {
  kPrefixForward,   // Phase A of a cluster
  kWaveForward,     // of one wave of Phase B, head and loss included
  kWaveBackward,    // of a wave whose forward ran
  kPrefixBackward,  // Phase C of a cluster
  // The exchanges of a wave that other ranks run, where this one has none in the round: of context-parallel ranks,
  // which exchange.ranks names; and where parameters are sharded, of other copies of the model.
  kJoinForward,
  kJoinBackward,
  // The same of a block of prefixes that other copies run, where parameters are sharded.
  kJoinPrefixForward,
  kJoinPrefixBackward,
  // A round of waves in which a context-parallel rank of a pipeline has none: where its cluster begins, it hears so.
  kIdle,
  // Between ranks. A plan makes the first two, for groups that are split over ranks.
  kSend,     // exchange.ranks = {from, to}
  kReceive,  // exchange.ranks = {from, to}
  kGather,   // of all exchange.ranks
  kReduce,   // of all exchange.ranks
};

// What crosses ranks: all of them name the same tensor with the same bytes.
struct Exchange {
  std::vector<int> ranks;
  std::string tensor;
  int64_t bytes = 0;

  bool operator==(const Exchange&) const = default;
};

// What a kSend or kReceive carries of the prefix of a split group.
enum class PrefixPart {
  kNone,       // nothing of it
  kKv,         // K/V of all layers, from the owner to a helper, whose hot set they become
  kGradients,  // gK/gV of all layers, from a helper, whose hot set ends, to the owner, who adds them to its own
};

// What a pipeline's stage receives before an operation, or sends after it: hidden states of the next stage's segment,
// or their gradient.
struct StageMessage {
  int rank = -1;       // the other one; -1: there is no message
  std::string tensor;  // the same on both sides

  bool exists() const { return rank >= 0; }
};

struct Operation {
  OperationKind kind = OperationKind::kPrefixForward;
  int cluster = 0;
  // The number of kWaveForward and kWaveBackward; of kJoinForward and kJoinBackward the round; of kJoinPrefixForward
  // and kJoinPrefixBackward the block, counted on from Phase A's in Phase C.
  int wave = 0;
  // What kSend, kReceive, kGather and kReduce carry; and of an operation that context-parallel ranks run together, with
  // exchanges inside of its layers, who they are, and which operation of theirs it is.
  Exchange exchange = {};
  PrefixPart part = PrefixPart::kNone;
  int peer_copy = 0;  // of a part of a prefix: the copy of the model whose rank of equal place has or gets it
  StageMessage input = {}, output = {};
};

using Program = std::vector<Operation>;

// Tell what kind an operation is of: an exchange between ranks and nothing else; the part that a rank takes in what
// others run; one that its cluster has several of, each with its number.
bool IsExchange(OperationKind kind);
bool IsJoin(OperationKind kind);
bool IsNumbered(OperationKind kind);

// Tells whether a wave that is joined is one of this copy's, whose K/V its context-parallel ranks gather together.
inline bool JoinsCopy(const Operation& operation) { return !operation.exchange.ranks.empty(); }

const char* KindText(OperationKind kind);
// "WaveForward(cluster 0, wave 2)", "Reduce(\"gk.3\", 4096 bytes, ranks 0 1)".
std::string OperationText(const Operation& operation);

}  // namespace stemma::worker
