// What memory_bench runs: one update's forward and backward of a synthetic group, computed as a case says, and what was
// measured of it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/cost.h"
#include "tests/bench/copy_engines.h"
#include "tests/testing/in_process.h"

namespace stemma::testing {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kHeadChunkRows = 512;

inline double MiB(double bytes) { return bytes / static_cast<double>(kMiB); }
inline double MiB(int64_t bytes) { return MiB(static_cast<double>(bytes)); }

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
};

// Of some values: the median, and the lowest and the highest.
struct Spread {
  explicit Spread(std::vector<double> values);
  std::string text(int digits) const;  // "1.02 (1.01–1.04)"
  double median = 0, low = 0, high = 0;
};

struct Measured {
  std::vector<double> seconds;        // of Prepare
  std::vector<double> phase_seconds;  // of Phases A, B and C in it
  worker::v1::Vote vote;              // the last
  double median() const { return Spread(seconds).median; }
};

// Of runs in turns: each over the other one of its round.
Spread RatioOf(const std::vector<double>& above, const std::vector<double>& below);

// When the phases of a step ended, in seconds of RealClock.
struct PhaseEnds {
  double begin_s = 0, prefix_forward_s = 0, suffix_s = 0, prefix_backward_s = 0;
};

class MemoryRuns {
 public:
  MemoryRuns(const std::string& model, uint32_t threads);

  // As `memory` says, one suffix a wave.
  Measured Run(const Shape& shape, const Memory& memory);
  // One run with another copy engine; `wrong`: its gradients may be anything.
  Measured RunWith(CopyEngine& copies, bool wrong, const Shape& shape, const Memory& memory);
  // As the planner chooses under a budget. Empty seconds: it refuses the group.
  Measured RunPlanned(const Shape& shape, int64_t budget_bytes, int rounds, v1::ClusterReport* report);

  ByteShape Bytes();
  const PhaseEnds& last_phases() const { return phases_; }  // of Run and RunWith

 private:
  InProcess& Forced();
  TrainingRequest Request(const Shape& shape, bool dense);
  void Prepare(InProcess& engine, bool wrong, Measured& measured);
  void NotePhase(const worker::v1::Heartbeat& heartbeat);

  const uint32_t threads_;
  InProcessOptions options_;
  std::unique_ptr<InProcess> forced_;     // an engine whose plans say current_
  ChangingCopyEngine* copies_ = nullptr;  // of forced_
  ThreadCopyEngine usual_copies_;
  Memory current_;
  PhaseEnds phases_;
};

}  // namespace stemma::testing
