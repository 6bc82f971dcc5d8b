#include "server/simulation/program_run.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <tuple>

#include "glog/logging.h"

namespace stemma::server {
namespace {

// In which part of its operation a rank is.
enum class State : uint8_t { kWaiting, kComputing, kMeeting, kHeld, kEnded };

struct Meeting {
  std::vector<size_t> members;  // ranks
  size_t come = 0;
};

struct Message {
  size_t receiver = 0;
  double begin_s = 0;  // on the link
  bool there = false;
};

// A moment at which a rank goes on: the end of its computing, by the work that a core has then done for every rank; or
// the end of its wires, or the arrival of a message, by the clock.
struct Moment {
  double at = 0;
  size_t rank = 0;
  int32_t message = kNone;
  bool operator>(const Moment& other) const {
    return std::tie(at, rank, message) > std::tie(other.at, other.rank, other.message);
  }
};
using Moments = std::priority_queue<Moment, std::vector<Moment>, std::greater<>>;

class Run {
 public:
  Run(const std::vector<SimulatedProgram>& programs, const SharedCores& shared)
      : programs_(programs), shared_(shared), ranks_(programs.size()), states_(programs.size()) {
    for (size_t rank = 0; rank < programs.size(); ++rank) {
      ranks_[rank].spans.resize(programs[rank].size());
      for (const SimulatedOperation& operation : programs[rank]) Enter(operation, rank);
    }
  }

  std::vector<SimulatedRank> All() {
    for (size_t rank = 0; rank < programs_.size(); ++rank) Next(rank);
    while (true) {
      const double computed_at = computing_.empty() ? kNever : now_s_ + (computing_.top().at - done_s_) / Speed();
      const double timed_at = timed_.empty() ? kNever : timed_.top().at;
      if (computed_at == kNever && timed_at == kNever) break;
      if (computed_at <= timed_at) {
        const Moment moment = computing_.top();
        computing_.pop();
        done_s_ = moment.at;
        now_s_ = computed_at;
        HasComputed(moment.rank);
      } else {
        const Moment moment = timed_.top();
        timed_.pop();
        if (!computing_.empty()) done_s_ += (timed_at - now_s_) * Speed();
        now_s_ = timed_at;
        moment.message == kNone ? HasHeld(moment.rank) : Arrive(static_cast<size_t>(moment.message));
      }
    }
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      CHECK(states_[rank].state == State::kEnded)
          << "rank " << rank << " waits for ever in operation " << states_[rank].at;
    }
    return std::move(ranks_);
  }

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  struct RankState {
    size_t at = 0;  // its operation
    State state = State::kWaiting;
    double since_s = 0;              // it is in this state
    double link_free_s[2] = {0, 0};  // backward, forward
  };

  void Enter(const SimulatedOperation& operation, size_t rank) {
    if (operation.meeting != kNone) {
      const auto number = static_cast<size_t>(operation.meeting);
      if (number >= meetings_.size()) meetings_.resize(number + 1);
      meetings_[number].members.push_back(rank);
    }
    if (operation.needs == kNone) return;
    const auto number = static_cast<size_t>(operation.needs);
    if (number >= messages_.size()) messages_.resize(number + 1);
    messages_[number].receiver = rank;
  }

  const SimulatedOperation& Operation(size_t rank) const { return programs_[rank][states_[rank].at]; }

  double Speed() const {
    const double threads = static_cast<double>(computing_.size()) * shared_.threads_per_rank;
    return threads > shared_.cores ? shared_.cores / threads : 1;
  }

  // Begins the operation at which the rank stands, or waits for what it needs.
  void Next(size_t rank) {
    RankState& state = states_[rank];
    state.since_s = now_s_;
    if (state.at == programs_[rank].size()) {
      state.state = State::kEnded;
      ranks_[rank].end_s = now_s_;
      return;
    }
    const SimulatedOperation& operation = Operation(rank);
    state.state = State::kWaiting;
    if (operation.needs == kNone || messages_[static_cast<size_t>(operation.needs)].there) Begin(rank);
  }

  void Begin(size_t rank) {
    RankState& state = states_[rank];
    if (const int32_t needs = Operation(rank).needs; needs != kNone) {
      // First for the stage that sends it, and then for the message on its way.
      constexpr auto kAt = static_cast<size_t>(Axis::kStage);
      const double on_wire_s = now_s_ - std::max(state.since_s, messages_[static_cast<size_t>(needs)].begin_s);
      ranks_[rank].wire_s[kAt] += std::max(on_wire_s, 0.0);
      ranks_[rank].wait_s[kAt] += now_s_ - state.since_s - std::max(on_wire_s, 0.0);
    }
    ranks_[rank].spans[state.at].begin_s = now_s_;
    state.since_s = now_s_;
    state.state = State::kComputing;
    computing_.push({.at = done_s_ + Operation(rank).compute_s, .rank = rank});
  }

  void HasComputed(size_t rank) {
    RankState& state = states_[rank];
    ranks_[rank].compute_s += now_s_ - state.since_s;
    state.since_s = now_s_;
    const SimulatedOperation& operation = Operation(rank);
    operation.meeting == kNone || operation.meets_last ? Hold(rank) : Meet(rank);
  }

  // Goes on with all members of the meeting when the last of them has come.
  void Meet(size_t rank) {
    states_[rank].state = State::kMeeting;
    states_[rank].since_s = now_s_;
    Meeting& meeting = meetings_[static_cast<size_t>(Operation(rank).meeting)];
    if (++meeting.come < meeting.members.size()) return;
    for (const size_t member : meeting.members) {
      const SimulatedOperation& operation = Operation(member);
      ranks_[member].wait_s[static_cast<size_t>(operation.meeting_axis)] += now_s_ - states_[member].since_s;
      operation.meets_last ? End(member) : Hold(member);
    }
  }

  // The bytes of the operation travel.
  void Hold(size_t rank) {
    RankState& state = states_[rank];
    const SimulatedOperation& operation = Operation(rank);
    state.since_s = now_s_;
    state.state = State::kHeld;
    for (size_t axis = 0; axis < kNumAxes; ++axis) ranks_[rank].wire_s[axis] += operation.wire_s[axis];
    timed_.push({.at = now_s_ + operation.held_s(), .rank = rank});
  }

  void HasHeld(size_t rank) {
    const SimulatedOperation& operation = Operation(rank);
    operation.meeting == kNone || !operation.meets_last ? End(rank) : Meet(rank);
  }

  void End(size_t rank) {
    RankState& state = states_[rank];
    const SimulatedMessage& message = Operation(rank).sends;
    ranks_[rank].spans[state.at].end_s = now_s_;
    if (message.number != kNone) {
      double& free_s = state.link_free_s[message.forward ? 1 : 0];
      const double begin_s = std::max(free_s, now_s_);
      CHECK_LT(static_cast<size_t>(message.number), messages_.size()) << "nobody needs message " << message.number;
      messages_[static_cast<size_t>(message.number)].begin_s = begin_s;
      free_s = begin_s + message.seconds;
      timed_.push({.at = free_s, .rank = rank, .message = message.number});
    }
    ++state.at;
    Next(rank);
  }

  void Arrive(size_t number) {
    Message& message = messages_[number];
    message.there = true;
    const RankState& receiver = states_[message.receiver];
    if (receiver.state == State::kWaiting && Operation(message.receiver).needs == static_cast<int32_t>(number)) {
      Begin(message.receiver);
    }
  }

  const std::vector<SimulatedProgram>& programs_;
  const SharedCores shared_;
  std::vector<SimulatedRank> ranks_;
  std::vector<RankState> states_;
  std::vector<Meeting> meetings_;
  std::vector<Message> messages_;
  double now_s_ = 0;
  double done_s_ = 0;  // work that a rank that always computed would have done
  Moments computing_, timed_;
};

}  // namespace

double SimulatedOperation::held_s() const { return std::accumulate(wire_s.begin(), wire_s.end(), 0.0); }

std::vector<SimulatedRank> RunPrograms(const std::vector<SimulatedProgram>& programs, const SharedCores& shared) {
  return Run(programs, shared).All();
}

}  // namespace stemma::server
