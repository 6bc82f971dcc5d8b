// Runs the programs of ranks against each other in simulated time: what each of them computes, sends and waits for.
// Pure: programs in, times out; the same programs give the same times, bit for bit.
//
// An operation waits for the message that it needs, computes, meets the others of its meeting where it has one, and
// then holds its rank for the seconds that its bytes travel unhidden. Where they travel while others compute, it meets
// them at its end. What it sends leaves at its end, behind what the rank has sent before to the same neighbour, and
// holds nobody.
//
// Ranks may share cores: while more threads compute than there are cores, all of them are slower alike.
//
// Invariants:
//  (1) each second of a rank until its end is of one kind: computing, a wire, or waiting.
//  (2) programs that could wait for ever die by CHECK.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace stemma::server {

enum class Axis : uint8_t { kTensor, kContext, kStage, kData };
inline constexpr size_t kNumAxes = 4;
using AxisSeconds = std::array<double, kNumAxes>;
// An axis' place in them.
inline constexpr auto kTensorAt = static_cast<size_t>(Axis::kTensor), kContextAt = static_cast<size_t>(Axis::kContext),
                      kStageAt = static_cast<size_t>(Axis::kStage), kDataAt = static_cast<size_t>(Axis::kData);

inline constexpr int32_t kNone = -1;

// What leaves at the end of an operation. Messages are numbered from 0, and each is sent once and needed once.
struct SimulatedMessage {
  int32_t number = kNone;
  double seconds = 0;   // on the link, alone
  bool forward = true;  // to the next stage: each direction is a link of its own
};

struct SimulatedOperation {
  std::string name;         // "A", "F", "B", "C", and "K/V", "gK/gV" of groups that copies share
  double compute_s = 0;     // where the rank's threads have cores of their own
  AxisSeconds wire_s = {};  // that hold the rank; in the order of the axes
  int32_t needs = kNone;    // the message without which it does not begin
  SimulatedMessage sends = {};
  int32_t meeting = kNone;  // all its members have computed before any of them goes on
  Axis meeting_axis = Axis::kContext;
  bool meets_last = false;  // after its own bytes have travelled; all members have the same

  double held_s() const;
};

using SimulatedProgram = std::vector<SimulatedOperation>;

struct SimulatedSpan {
  double begin_s = 0, end_s = 0;  // from when it has what it needs
};

// What one rank did.
struct SimulatedRank {
  std::vector<SimulatedSpan> spans;  // of its operations
  double compute_s = 0;              // as long as it took, on shared cores
  AxisSeconds wire_s = {};           // that held it; of kStage while a message that it needed was on its way
  AxisSeconds wait_s = {};           // for other stages, before they sent, and for the others of a meeting
  double end_s = 0;
};

struct SharedCores {
  double cores = std::numeric_limits<double>::infinity();
  double threads_per_rank = 1;  // of each program: those of all ranks that it stands for
};

// REQUIRES: every message is sent by one operation and needed by one; the members of a meeting are of different ranks.
std::vector<SimulatedRank> RunPrograms(const std::vector<SimulatedProgram>& programs, const SharedCores& shared = {});

}  // namespace stemma::server
