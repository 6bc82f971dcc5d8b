#include "tests/testing/thread_communicator.h"

#include <ATen/ops/maximum.h>
#include <glog/logging.h>

#include <array>
#include <deque>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/mutex.h"
#include "worker/parallel/axis_groups.h"

namespace stemma::testing {
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

// One rank's side of a message. Guarded by the mutex of their group, but for what it is made with.
struct Message {
  bool sends;
  int rank, peer;
  std::string description;  // of the sender's call
  at::Tensor values;        // sent, or to be filled
  bool done = false;
};

Message MessageOf(const CollectiveCall& call, int rank) {
  const bool sends = call.kind == CollectiveKind::kSend;
  CollectiveCall sent = call;
  sent.kind = CollectiveKind::kSend;
  return {sends, rank, call.peer, Described(sent), (sends ? call.input : call.output).view(-1)};
}

// What the ranks share. A meeting is one collective; the n-th of each rank is the same one. A rank's messages stand in
// a queue, as on a device's stream: a message is exchanged when both sides are first in theirs.
class ThreadGroup {
 public:
  ThreadGroup(int size, absl::Duration timeout, bool pairs_apart)
      : timeout_(timeout), pairs_apart_(pairs_apart), next_meeting_(static_cast<size_t>(size), 0) {}

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

  // Queues the rank's side of a message. Never waits.
  std::shared_ptr<Message> Queue(const CollectiveCall& call, int rank) {
    auto message = std::make_shared<Message>(MessageOf(call, rank));
    MutexLock lock(&mutex_);
    QueueOf(*message, rank).push_back(message);
    for (bool exchanged = true; exchanged;) {
      exchanged = false;
      for (const auto& [place, queue] : queues_) exchanged |= !queue.empty() && Exchange(*queue.front());
    }
    return message;
  }

  bool IsDone(const Message& message) {
    MutexLock lock(&mutex_);
    return message.done || !ended_.empty();
  }

  absl::Status AwaitDone(const std::shared_ptr<Message>& message) {
    MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return message->done || !ended_.empty(); },
                            timeout_);
    if (message->done) return absl::OkStatus();
    std::erase(QueueOf(*message, message->rank), message);
    return Ended(absl::StrCat("waited for rank ", message->peer));
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

  using MessageQueue = std::deque<std::shared_ptr<Message>>;

  // Returns the queue in which `rank`, one of its two, has its side of the message.
  MessageQueue& QueueOf(const Message& message, int rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!pairs_apart_) return queues_[{rank, -1, -1}];
    return queues_[{rank, message.sends ? message.rank : message.peer, message.sends ? message.peer : message.rank}];
  }

  // Exchanges a message that is first in its queue, if the peer's side of it is first in its own.
  bool Exchange(Message& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    MessageQueue& peers = QueueOf(message, message.peer);
    if (peers.empty() || peers.front()->peer != message.rank || peers.front()->sends == message.sends) return false;
    Message& other = *peers.front();
    const Message &from = message.sends ? message : other, &to = message.sends ? other : message;
    CHECK_EQ(from.description, to.description)
        << "rank " << from.rank << " sends one thing and rank " << to.rank << " receives another";
    at::Tensor(to.values).copy_(from.values);
    message.done = other.done = true;
    peers.pop_front();
    QueueOf(message, message.rank).pop_front();
    return true;
  }

  const absl::Duration timeout_;
  const bool pairs_apart_;
  Mutex mutex_;
  std::vector<int64_t> next_meeting_ ABSL_GUARDED_BY(mutex_);  // by rank
  std::map<int64_t, Meeting> meetings_ ABSL_GUARDED_BY(mutex_);
  std::map<std::array<int, 3>, MessageQueue> queues_
      ABSL_GUARDED_BY(mutex_);                 // by rank; where pairs are apart, by sender and receiver, too
  std::string ended_ ABSL_GUARDED_BY(mutex_);  // why; empty: not
};

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(std::string axis, int rank, int size, std::shared_ptr<ThreadGroup> group)
      : Communicator(std::move(axis), rank, size), group_(std::move(group)) {}
  ~ThreadCommunicator() override { group_->Leave(rank()); }

 private:
  StartedCall Start(const CollectiveCall& call) override {
    if (call.kind == CollectiveKind::kSend || call.kind == CollectiveKind::kReceive) {
      const std::shared_ptr<Message> message = group_->Queue(call, rank());
      return {[this, message] { return group_->AwaitDone(message); },
              [this, message] { return group_->IsDone(*message); }};
    }
    const int64_t meeting = group_->Join(call, rank());
    return {[this, &call, meeting] { return group_->Finish(call, meeting, rank()); },
            [this, meeting] { return group_->Finished(meeting); }};
  }
  void Break() override { group_->Leave(rank()); }

  const std::shared_ptr<ThreadGroup> group_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> MakeThreadRanks(int size, absl::Duration timeout, const std::string& axis,
                                                           bool pairs_apart) {
  const auto group = std::make_shared<ThreadGroup>(size, timeout, pairs_apart);
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
      if (group.empty()) group = MakeThreadRanks(static_cast<int>(own.size), timeout, own.name, own.pairs_apart);
      ranks[rank].*own.communicator = std::move(group[own.rank]);
    }
  }
  return ranks;
}

}  // namespace stemma::testing
