#include "worker/parallel/thread_communicator.h"

#include <ATen/ops/maximum.h>
#include <glog/logging.h>

#include <deque>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/mutex.h"
#include "worker/parallel/axis_groups.h"

namespace stemma::worker {
namespace {

std::string Described(const CollectiveCall& call) {
  std::string text = absl::StrCat(std::string(KindName(call.kind)), " ", call.name);
  const at::Tensor& tensor = call.output.defined() ? call.output : call.input;
  if (tensor.defined()) absl::StrAppend(&text, " of ", tensor.numel(), " ", at::toString(tensor.scalar_type()));
  if (call.kind == CollectiveKind::kBroadcast) absl::StrAppend(&text, " from rank ", call.peer);
  return text;
}

at::Tensor Copied(const at::Tensor& tensor) { return tensor.defined() ? tensor.clone().view(-1) : at::Tensor(); }

// What this rank gets of the ranks' contributions. Sums are added in the order of the ranks.
void Combine(const CollectiveCall& call, const std::vector<at::Tensor>& from_ranks, int rank) {
  if (!call.output.defined()) return;
  const at::Tensor output = call.output.view(-1);
  const int64_t part = output.numel();
  const auto mine = [&](const at::Tensor& whole) {
    return call.kind == CollectiveKind::kReduceScatterSum ? whole.narrow(0, rank * part, part) : whole;
  };
  if (call.kind == CollectiveKind::kBroadcast) {
    output.copy_(from_ranks[static_cast<size_t>(call.peer)]);
    return;
  }
  for (size_t r = 0; r < from_ranks.size(); ++r) {
    if (call.kind == CollectiveKind::kAllGather) {
      const int64_t input_size = from_ranks[r].numel();
      output.narrow(0, static_cast<int64_t>(r) * input_size, input_size).copy_(from_ranks[r]);
    } else if (r == 0) {
      output.copy_(mine(from_ranks[r]));
    } else if (call.kind == CollectiveKind::kAgree) {
      output.copy_(at::maximum(output, from_ranks[r]));
    } else {
      output.add_(mine(from_ranks[r]));
    }
  }
}

// What one rank sends another. Guarded by the mutex of their group, but for what it is made with.
struct Message {
  std::string description;
  at::Tensor values;
  bool taken = false;
};

// What the ranks share. A meeting is one collective; the n-th of each rank is the same one.
class ThreadGroup {
 public:
  ThreadGroup(int size, absl::Duration timeout) : timeout_(timeout), next_meeting_(static_cast<size_t>(size), 0) {}

  // Contributes the rank's input to its next meeting. Never waits.
  int64_t Join(const CollectiveCall& call, int rank) {
    const std::string description = Described(call);
    at::Tensor contribution = Copied(call.kind == CollectiveKind::kBroadcast ? call.output : call.input);
    MutexLock lock(&mutex_);
    const int64_t index = next_meeting_[static_cast<size_t>(rank)]++;
    Meeting& meeting = meetings_[index];
    if (meeting.from_ranks.empty()) {
      meeting.description = description;
      meeting.first_rank = rank;
      meeting.from_ranks.resize(next_meeting_.size());
      meeting.here.resize(next_meeting_.size());
    }
    CHECK_EQ(description, meeting.description)
        << "rank " << rank << " and rank " << meeting.first_rank << " meet in different collectives";
    meeting.from_ranks[static_cast<size_t>(rank)] = std::move(contribution);
    meeting.here[static_cast<size_t>(rank)] = true;
    ++meeting.here_count;
    return index;
  }

  // Whether Finish would return at once.
  bool Finished(int64_t index) {
    MutexLock lock(&mutex_);
    return meetings_.at(index).here_count == size() || !ended_.empty();
  }

  // Waits until every rank has joined the meeting, and takes the result.
  absl::Status Finish(const CollectiveCall& call, int64_t index, int rank) {
    std::vector<at::Tensor> from_ranks;
    {
      MutexLock lock(&mutex_);
      Meeting& meeting = meetings_.at(index);
      const auto complete = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return meeting.here_count == size(); };
      mutex_.AwaitWithTimeout([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return complete() || !ended_.empty(); },
                              timeout_);
      if (!complete()) return Ended(absl::StrCat("waited for ", Missing(meeting)));
      from_ranks = meeting.from_ranks;
      if (++meeting.finished_count == size()) meetings_.erase(index);
    }
    Combine(call, from_ranks, rank);
    return absl::OkStatus();
  }

  // Puts the values where their receiver finds them. Never waits.
  std::shared_ptr<Message> Post(const CollectiveCall& call, int rank) {
    auto message = std::make_shared<Message>(Message{Described(call), Copied(call.input)});
    MutexLock lock(&mutex_);
    messages_[{rank, call.peer}].push_back(message);
    return message;
  }

  bool Taken(const Message& message) {
    MutexLock lock(&mutex_);
    return message.taken || !ended_.empty();
  }

  absl::Status AwaitTaken(const CollectiveCall& call, const std::shared_ptr<Message>& message, int rank) {
    MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return message->taken || !ended_.empty(); },
                            timeout_);
    if (message->taken) return absl::OkStatus();
    std::erase(messages_[{rank, call.peer}], message);
    return Ended(absl::StrCat("waited for rank ", call.peer));
  }

  absl::Status Receive(const CollectiveCall& call, int rank) {
    MutexLock lock(&mutex_);
    auto& queue = messages_[{call.peer, rank}];
    mutex_.AwaitWithTimeout([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !queue.empty() || !ended_.empty(); },
                            timeout_);
    if (queue.empty()) return Ended(absl::StrCat("waited for rank ", call.peer));
    const std::shared_ptr<Message> message = queue.front();
    CollectiveCall expected = call;
    expected.kind = CollectiveKind::kSend;
    CHECK_EQ(message->description, Described(expected))
        << "rank " << call.peer << " sends one thing and rank " << rank << " receives another";
    call.output.view(-1).copy_(message->values);
    message->taken = true;
    queue.pop_front();
    return absl::OkStatus();
  }

  // Ends what incomplete meetings wait for.
  void Leave(int rank) {
    MutexLock lock(&mutex_);
    if (ended_.empty()) ended_ = absl::StrCat("rank ", rank, " has left");
  }

 private:
  struct Meeting {
    std::string description;  // of the first call
    int first_rank = 0;
    std::vector<at::Tensor> from_ranks;
    std::vector<bool> here;
    int here_count = 0, finished_count = 0;
  };
  int size() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return static_cast<int>(next_meeting_.size()); }

  static std::string Missing(const Meeting& meeting) {
    std::vector<int> missing;
    for (size_t rank = 0; rank < meeting.here.size(); ++rank) {
      if (!meeting.here[rank]) missing.push_back(static_cast<int>(rank));
    }
    return absl::StrCat(missing.size() == 1 ? "rank " : "ranks ", absl::StrJoin(missing, ", "));
  }

  absl::Status Ended(const std::string& waited_for) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const std::string cause =
        ended_.empty() ? absl::StrCat("timed out after ", absl::FormatDuration(timeout_)) : ended_;
    return absl::UnavailableError(absl::StrCat(waited_for, ": ", cause));
  }

  const absl::Duration timeout_;
  Mutex mutex_;
  std::vector<int64_t> next_meeting_ ABSL_GUARDED_BY(mutex_);  // by rank
  std::map<int64_t, Meeting> meetings_ ABSL_GUARDED_BY(mutex_);
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Message>>> messages_
      ABSL_GUARDED_BY(mutex_);                 // by sender and receiver
  std::string ended_ ABSL_GUARDED_BY(mutex_);  // why; empty: not
};

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(std::string axis, int rank, int size, std::shared_ptr<ThreadGroup> group)
      : Communicator(std::move(axis), rank, size), group_(std::move(group)) {}
  ~ThreadCommunicator() override { group_->Leave(rank()); }

 private:
  StartedCall Start(const CollectiveCall& call) override {
    if (call.kind == CollectiveKind::kSend) {
      const std::shared_ptr<Message> message = group_->Post(call, rank());
      return {[this, &call, message] { return group_->AwaitTaken(call, message, rank()); },
              [this, message] { return group_->Taken(*message); }};
    }
    if (call.kind == CollectiveKind::kReceive) return {[this, &call] { return group_->Receive(call, rank()); }};
    const int64_t meeting = group_->Join(call, rank());
    return {[this, &call, meeting] { return group_->Finish(call, meeting, rank()); },
            [this, meeting] { return group_->Finished(meeting); }};
  }
  void Break() override { group_->Leave(rank()); }

  const std::shared_ptr<ThreadGroup> group_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> MakeThreadRanks(int size, absl::Duration timeout, const std::string& axis) {
  const auto group = std::make_shared<ThreadGroup>(size, timeout);
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (int rank = 0; rank < size; ++rank)
    ranks.push_back(std::make_unique<ThreadCommunicator>(axis, rank, size, group));
  return ranks;
}

std::vector<MeshRanks> MakeThreadMesh(const v1::Mesh& mesh, int64_t kv_replicas, absl::Duration timeout) {
  std::vector<MeshRanks> ranks(NumRanks(mesh));
  std::map<std::string, std::vector<std::unique_ptr<Communicator>>> groups;  // by name
  for (uint32_t rank = 0; rank < ranks.size(); ++rank) {
    for (const AxisGroup& own : GroupsOf(mesh, PlaceOf(mesh, rank), static_cast<uint32_t>(kv_replicas))) {
      auto& group = groups[own.name];
      if (group.empty()) group = MakeThreadRanks(static_cast<int>(own.size), timeout, own.name);
      ranks[rank].*own.communicator = std::move(group[own.rank]);
    }
  }
  return ranks;
}

}  // namespace stemma::worker
