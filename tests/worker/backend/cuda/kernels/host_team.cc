#include "tests/worker/backend/cuda/kernels/host_team.h"

#include <glog/logging.h>
#include <ucontext.h>

#include <memory>
#include <vector>

namespace stemma::testing {

// The lanes of one team and what they leave for each other.
class Fibers {
 public:
  explicit Fibers(int count) : contexts_(count), slots_(count), ended_(count, false) {
    while (stacks().size() < static_cast<size_t>(count)) stacks().push_back(std::make_unique<Stack>());
  }

  // Runs the lanes in rounds, each from one barrier to the next.
  void Run(const std::function<void(int)>& lane, LaneOrder order) {
    lane_ = &lane;
    const int count = static_cast<int>(contexts_.size());
    for (int rank = 0; rank < count; ++rank) Prepare(rank);
    for (int ended = 0; ended < count;) {
      for (int n = 0; n < count; ++n) {
        running_ = order == LaneOrder::kAscending ? n : count - 1 - n;
        CHECK(!ended_[running_]) << "lanes wait at a barrier that lane " << running_ << " never comes to";
        CHECK_EQ(swapcontext(&scheduler_, &contexts_[running_]), 0);
        ended += ended_[running_] ? 1 : 0;
      }
      CHECK(ended == 0 || ended == count) << "a barrier that " << ended << " of " << count << " lanes never come to";
    }
  }

  void Pause() {
    const int rank = running_;
    CHECK_EQ(swapcontext(&contexts_[rank], &scheduler_), 0);
  }

  std::array<std::byte, 8>& slot(int rank) { return slots_[rank]; }

 private:
  using Stack = std::array<std::byte, 256 * 1024>;
  static std::vector<std::unique_ptr<Stack>>& stacks() {
    static std::vector<std::unique_ptr<Stack>> all;
    return all;
  }

  void Prepare(int rank) {
    ucontext_t& context = contexts_[rank];
    CHECK_EQ(getcontext(&context), 0);
    context.uc_stack.ss_sp = stacks()[rank]->data();
    context.uc_stack.ss_size = sizeof(Stack);
    context.uc_link = &scheduler_;
    const auto self = reinterpret_cast<uintptr_t>(this);
    makecontext(&context, reinterpret_cast<void (*)()>(Enter), 2, static_cast<unsigned>(self >> 32),
                static_cast<unsigned>(self));
  }

  // makecontext passes ints.
  static void Enter(unsigned high, unsigned low) {
    auto* self = reinterpret_cast<Fibers*>(static_cast<uintptr_t>(high) << 32 | low);
    const int rank = self->running_;
    (*self->lane_)(rank);
    self->ended_[rank] = true;
  }

  const std::function<void(int)>* lane_ = nullptr;
  std::vector<ucontext_t> contexts_;
  std::vector<std::array<std::byte, 8>> slots_;
  std::vector<bool> ended_;
  ucontext_t scheduler_;
  int running_ = 0;
};

void HostTeam::Sync() { fibers_.Pause(); }

void HostTeam::Put(const void* value, size_t bytes) {
  CHECK_LE(bytes, fibers_.slot(rank_).size());
  std::memcpy(fibers_.slot(rank_).data(), value, bytes);
  fibers_.Pause();
}

const std::byte* HostTeam::Slot(int rank) const { return fibers_.slot(rank).data(); }

void RunFibers(const TeamShape& shape, const std::function<void(int64_t, int, Fibers&)>& lane) {
  for (int64_t index = 0; index < shape.count; ++index) {
    Fibers fibers(shape.size);
    fibers.Run([&](int rank) { lane(index, rank, fibers); }, shape.order);
  }
}

}  // namespace stemma::testing
