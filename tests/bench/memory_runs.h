// What memory_bench runs: one update's forward and backward of a synthetic group, computed as a case says, and what was
// measured of it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/cost/prefix_bytes.h"
#include "common/cost/wave_bytes.h"
#include "tests/bench/copy_engines.h"
#include "tests/testing/in_process.h"
#include "tests/testing/namespaces.h"

namespace stemma::testing {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kHeadChunkRows = 512;

inline double MiB(double bytes) { return bytes / static_cast<double>(kMiB); }
inline double MiB(int64_t bytes) { return MiB(static_cast<double>(bytes)); }
inline double MiB(uint64_t bytes) { return MiB(static_cast<double>(bytes)); }

// How a cluster is computed.
struct Memory {
  std::string name;
  v1::TapePolicy prefix = v1::S0, suffix = v1::S0;
  int64_t block_rows = 0;
  bool offload = false;
  int64_t headroom_bytes = 0;
  bool dense = false;
};

struct Shape {
  int64_t prompt = 0, response = 0, rollouts = 0;
  std::string text() const {
    return std::to_string(prompt) + "/" + std::to_string(response) + "/" + std::to_string(rollouts);
  }
};

PrefixShape PrefixOf(const Shape& shape, const Memory& memory);
WaveShape WaveOf(const Shape& shape, const Memory& memory);  // of one suffix
// The highest of all phases.
int64_t PlannedPeak(const ByteShape& bytes, const Shape& shape, const Memory& memory);

struct Measured {
  double seconds = 0;        // of Prepare
  double phase_seconds = 0;  // of Phases A, B and C in it
  internal::v1::Vote vote;
  const internal::v1::StepSums& sums() const { return vote.sums(); }
  double suffix_bytes() const { return static_cast<double>(sums().suffix_bytes()); }
};

// When the phases of a step ended, in seconds of RealClock.
struct PhaseEnds {
  double begin_s = 0, prefix_forward_s = 0, suffix_s = 0, prefix_backward_s = 0;
};

class MemoryRuns {
 public:
  MemoryRuns(const std::string& model, uint32_t threads);

  // Runs as `memory` says, one suffix a wave.
  Measured Run(const Shape& shape, const Memory& memory);
  // One run with another copy engine; `wrong`: its gradients may be anything.
  Measured RunWith(CopyEngine& copies, bool wrong, const Shape& shape, const Memory& memory);
  // An engine of its own that computes as the planner chooses under a budget for activations; null: it refuses.
  std::unique_ptr<InProcess> Planned(const Shape& shape, int64_t budget_bytes);
  Measured RunPlanned(InProcess& engine);

  ByteShape Bytes();
  const PhaseEnds& last_phases() const { return phases_; }  // of Run and RunWith

 private:
  InProcess& Forced();
  TrainingRequest Request(const Shape& shape, bool dense);
  Measured Prepare(InProcess& engine, bool wrong);
  void NotePhase(const internal::v1::Heartbeat& heartbeat);

  const uint32_t threads_;
  InProcessOptions options_;
  std::unique_ptr<InProcess> forced_;     // an engine whose plans say current_
  ChangingCopyEngine* copies_ = nullptr;  // of forced_
  ThreadCopyEngine usual_copies_;
  Memory current_;
  PhaseEnds phases_;
};

}  // namespace stemma::testing
