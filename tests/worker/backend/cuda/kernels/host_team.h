// A team of the CUDA kernels' bodies on the host (worker/backend/cuda/kernels/team.h): lanes as fibers of one thread.
//
// A lane runs until it comes to a barrier, then the next one does. What a device would leave undefined shows here:
// lanes that do not come to the same barriers end the process, and an order of lanes that a body relies on without a
// barrier changes its result. Thread safety: none, one team at a time in a thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

namespace stemma::testing {

// In which order lanes run between two barriers.
enum class LaneOrder { kAscending, kDescending };

struct TeamShape {
  int size = 1;
  int64_t count = 1;  // teams, which run one after the other
  LaneOrder order = LaneOrder::kAscending;
};

class Fibers;

class HostTeam {
 public:
  HostTeam(Fibers& fibers, const TeamShape& shape, int64_t index, int rank)
      : fibers_(fibers), shape_(shape), index_(index), rank_(rank) {}

  int size() const { return shape_.size; }
  int rank() const { return rank_; }
  int64_t index() const { return index_; }
  int64_t count() const { return shape_.count; }

  void Sync();
  template <typename A>
  A Sum(A x) {
    return Reduce(x, [](A a, A b) { return a + b; });
  }
  template <typename A>
  A Max(A x) {
    return Reduce(x, [](A a, A b) { return b > a ? b : a; });
  }
  template <typename A>
  A Broadcast(A x, int rank) {
    Put(&x, sizeof x);
    const A from = Get<A>(rank);
    Sync();
    return from;
  }

 private:
  template <typename A, typename F>
  A Reduce(A x, const F& join) {
    Put(&x, sizeof x);
    A joined = Get<A>(0);
    for (int rank = 1; rank < size(); ++rank) joined = join(joined, Get<A>(rank));
    Sync();
    return joined;
  }
  // Leaves a number where all lanes see it once each has come here.
  void Put(const void* value, size_t bytes);
  const std::byte* Slot(int rank) const;
  template <typename A>
  A Get(int rank) const {
    A x;
    std::memcpy(&x, Slot(rank), sizeof x);
    return x;
  }

  Fibers& fibers_;
  const TeamShape shape_;
  const int64_t index_;
  const int rank_;
};

// Calls lane(index, rank, fibers) for each lane of each team.
void RunFibers(const TeamShape& shape, const std::function<void(int64_t, int, Fibers&)>& lane);

// Calls body(team) on each lane; Team: HostTeam or what a control makes of it.
template <typename Team = HostTeam, typename Body>
void RunTeams(const TeamShape& shape, const Body& body) {
  RunFibers(shape, [&](int64_t index, int rank, Fibers& fibers) {
    Team team(fibers, shape, index, rank);
    body(team);
  });
}

}  // namespace stemma::testing
