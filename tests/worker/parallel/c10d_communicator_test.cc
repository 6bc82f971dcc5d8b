// How a rank's end treats the backends of its axes, what these are given, and what a rank says of an error of one.
#include "worker/parallel/c10d_communicator.h"

#include <ATen/ops/ones.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <utility>
#include <vector>

#include "tests/testing/fake_device.h"
#include "tests/testing/namespaces.h"

namespace stemma::testing {
namespace {

// Writes down what ends it.
class EndingBackend final : public c10d::Backend {
 public:
  EndingBackend(std::string name, std::vector<std::string>& ends)
      : Backend(0, 2), name_(std::move(name)), ends_(ends) {}

  const std::string getBackendName() const override { return name_; }
  void shutdown() override { ends_.push_back("shutdown of " + name_); }
  void abort() override { ends_.push_back("abort of " + name_); }

 private:
  const std::string name_;
  std::vector<std::string>& ends_;
};

// NCCL's orderly end is a call of all ranks: one that ends alone would wait for the others for ever.
TEST(C10dCommunicator, ARankEndsWithoutTheOthersOfItsDevices) {
  std::vector<std::string> ends;
  const auto backend = [&](const char* name) { return c10::make_intrusive<EndingBackend>(name, ends); };
  {
    worker::AxisBackends backends;
    backends.host = backend("host");
    backends.device = backend("device");
    backends.to = {nullptr, backend("to 1")};
    backends.from = {nullptr, backend("from 1")};
    const worker::C10dCommunicator ranks("pp", std::move(backends), absl::Seconds(1));
  }
  const std::vector<std::string> expected = {"shutdown of host", "abort of device", "abort of to 1", "abort of from 1"};
  EXPECT_EQ(ends, expected);
}

// As NCCL's end does where a device has failed, or what is in flight does not end.
class FailingBackend final : public c10d::Backend {
 public:
  explicit FailingBackend(std::vector<std::string>& ends) : Backend(0, 2), ends_(ends) {}
  ~FailingBackend() override { ends_.push_back("dropped"); }

  const std::string getBackendName() const override { return "failing"; }
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& /*values*/, int /*to*/, int /*tag*/) override { Fail(); }
  void shutdown() override { Fail(); }
  void abort() override { Fail(); }

 private:
  [[noreturn]] static void Fail() {
    throw c10::DistBackendError(c10::SourceLocation{"f", "NCCLUtils.hpp", 9}, "ncclUnhandledCudaError: Cuda failure");
  }

  std::vector<std::string>& ends_;
};

// Thrown on, it would end the process in the destructor or in the thread that drops the connections.
TEST(C10dCommunicator, AnEndThatFailsKeepsNeitherTheRankNorItsOtherBackends) {
  for (const bool breaks : {false, true}) {
    std::vector<std::string> ends;
    {
      worker::AxisBackends backends;
      backends.host = c10::make_intrusive<FailingBackend>(ends);
      backends.device = c10::make_intrusive<EndingBackend>("device", ends);
      backends.to = {nullptr, c10::make_intrusive<FailingBackend>(ends)};
      worker::C10dCommunicator ranks("pp", std::exchange(backends, {}), absl::Seconds(1));
      if (breaks) {
        const absl::Status failed = ranks.Send("s", at::ones({2}, at::kFloat), 1);
        EXPECT_EQ(failed.code(), absl::StatusCode::kUnavailable) << failed;
      }
    }
    std::vector<std::string> expected = {"abort of device", "dropped", "dropped"};
    if (breaks) std::swap(expected[0], expected[1]);
    EXPECT_EQ(ends, expected);
  }
}

class EndedWork final : public c10d::Work {
 public:
  explicit EndedWork(bool fails = false) : fails_(fails) {}
  bool isCompleted() override { return true; }
  bool wait(std::chrono::milliseconds /*timeout*/) override {
    TORCH_CHECK(!fails_, "Connection closed by peer");
    return true;
  }

 private:
  const bool fails_;
};

// Keeps what it was given last, as Gloo does for a moment.
class KeepingBackend final : public c10d::Backend {
 public:
  explicit KeepingBackend(bool fails = false) : Backend(0, 2), fails_(fails) {}
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& values, const c10d::AllreduceOptions&) override {
    return Keep(values[0]);
  }
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& values, const c10d::BroadcastOptions&) override {
    return Keep(values[0]);
  }
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& to, at::Tensor& from,
                                                 const c10d::AllgatherOptions&) override {
    return Keep(to, from);
  }
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& to, at::Tensor& from, std::vector<int64_t>&,
                                               std::vector<int64_t>&, const c10d::AllToAllOptions&) override {
    return Keep(to, from);
  }
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& values, int /*to*/, int /*tag*/) override {
    return Keep(values[0]);
  }
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& values, int /*from*/, int /*tag*/) override {
    return Keep(values[0]);
  }
  void shutdown() override {}
  void abort() override {}

  at::Tensor kept, kept_input;

 private:
  c10::intrusive_ptr<c10d::Work> Keep(const at::Tensor& values, const at::Tensor& input = {}) {
    kept = values;
    kept_input = input;
    return c10::make_intrusive<EndedWork>(fails_);
  }

  const bool fails_;
};

at::Storage StorageOf(const at::Tensor& values) { return values.storage(); }

// PyTorch's NCCL would hold back memory that it finds to be the allocator's.
TEST(C10dCommunicator, AMessageOfADeviceIsNotTheAllocatorsMemoryAndStaysUntilItsWait) {
  const auto host = c10::make_intrusive<KeepingBackend>(), device = c10::make_intrusive<KeepingBackend>();
  worker::AxisBackends backends;
  backends.host = host;
  backends.device = device;
  worker::C10dCommunicator ranks("data", std::move(backends), absl::Seconds(1));
  const at::TensorOptions options = MakeFakeDeviceBackend().options(at::kFloat);
  const auto expect_lent = [&](const at::Tensor& values) {
    EXPECT_EQ(device->kept.data_ptr(), values.data_ptr());
    EXPECT_EQ(device->kept.device(), values.device());
    EXPECT_EQ(device->kept.nbytes(), values.nbytes());
    EXPECT_NE(StorageOf(device->kept).data_ptr().get_deleter(), StorageOf(values).data_ptr().get_deleter());
  };
  at::Tensor values = at::ones({3, 4}, options).narrow(0, 1, 2);
  ASSERT_TRUE(ranks.Receive("r", values, 1).ok());
  expect_lent(values);
  auto pending = ranks.StartSend("s", values, 1);
  expect_lent(values);
  const auto memory = StorageOf(values).getWeakStorageImpl();
  values.reset();
  EXPECT_FALSE(memory.expired());
  EXPECT_TRUE(pending->Wait().ok());
  pending.reset();
  EXPECT_TRUE(memory.expired());
}

// Calls of two ranks, about tensors that nobody else has.
using CallOfRanks = std::function<absl::Status(worker::Communicator& ranks, at::Tensor small, at::Tensor large)>;

std::vector<std::pair<std::string, CallOfRanks>> CallsOfRanks() {
  using worker::Communicator;
  return {{"all-reduce", [](Communicator& ranks, at::Tensor small, auto) { return ranks.AllReduceSum("c", small); }},
          {"broadcast", [](Communicator& ranks, at::Tensor small, auto) { return ranks.Broadcast("c", small, 1); }},
          {"send", [](Communicator& ranks, auto small, auto) { return ranks.Send("c", small, 1); }},
          {"receive", [](Communicator& ranks, at::Tensor small, auto) { return ranks.Receive("c", small, 1); }},
          {"all-gather",
           [](Communicator& ranks, auto small, at::Tensor large) { return ranks.AllGather("c", small, large); }},
          {"reduce-scatter", [](Communicator& ranks, at::Tensor small, auto large) {
             return ranks.ReduceScatterSum("c", large, small);
           }}};
}

// What a call of the host's backend left behind.
struct LeftBehind {
  LeftBehind(const CallOfRanks& call, bool fails) : host(c10::make_intrusive<KeepingBackend>(fails)) {
    worker::AxisBackends backends;
    backends.host = host;
    worker::C10dCommunicator ranks("data", std::move(backends), absl::Seconds(1));
    at::Tensor small = at::ones({2}, at::kFloat), large = at::ones({4}, at::kFloat);
    for (const at::Tensor& values : {small, large}) memories.push_back(StorageOf(values).getWeakStorageImpl());
    EXPECT_EQ(call(ranks, std::move(small), std::move(large)).ok(), !fails);
    EXPECT_TRUE(host->kept.defined());
  }
  int64_t NumMemories() const {
    return std::count_if(memories.begin(), memories.end(), [](const auto& memory) { return !memory.expired(); });
  }

  const c10::intrusive_ptr<KeepingBackend> host;
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> memories;
};

// Gloo's thread drops what it was given behind the wait: by then a plan's bytes would be there still, or not.
TEST(C10dCommunicator, NoMemoryOfTheHostIsABackendsOnceItWasWaitedFor) {
  for (const auto& [name, call] : CallsOfRanks()) {
    EXPECT_EQ(LeftBehind(call, /*fails=*/false).NumMemories(), 0) << name;
  }
}

TEST(C10dCommunicator, MemoryOfACallThatFailedStaysWhileABackendMayWriteToIt) {
  for (const auto& [name, call] : CallsOfRanks()) {
    const LeftBehind left(call, /*fails=*/true);
    EXPECT_GE(left.NumMemories(), 1) << name;
    left.host->kept.fill_(0);
    left.host->kept_input.reset();
    left.host->kept.reset();
    EXPECT_EQ(left.NumMemories(), 0) << name;
  }
}

// All of an axis whose pairs are apart carry nothing of a device together, and say so.
TEST(C10dCommunicator, AnAxisWhosePairsAreApartHasNoBackendOfAllOnTheDevice) {
  std::vector<std::string> connected;
  worker::AxisBackends backends;
  backends.host = c10::make_intrusive<KeepingBackend>();
  const auto connect = [&](const auto& /*store*/, const worker::AxisRank& ranks) {
    connected.push_back(ranks.axis + (ranks.one_way ? " one way" : ""));
    return c10::make_intrusive<KeepingBackend>();
  };
  worker::AxisRank axis;
  axis.axis = "pp";
  axis.size = 2;
  axis.pairs_apart = true;
  worker::ConnectOnDevice(c10::make_intrusive<c10d::HashStore>(), axis, connect, backends);
  EXPECT_EQ(connected, (std::vector<std::string>{"pp.0to1 one way", "pp.1to0 one way"}));
  at::Tensor values = at::ones({2}, MakeFakeDeviceBackend().options(at::kFloat));
  worker::C10dCommunicator ranks("pp", backends, absl::Seconds(1));
  EXPECT_TRUE(ranks.Send("s", values, 1).ok());
  EXPECT_DEATH({ ranks.AllReduceSum("sum", values).IgnoreError(); },
               "sum: axis pp carries no all-reduce of tensors on");
  axis.pairs_apart = false;
  worker::ConnectOnDevice(c10::make_intrusive<c10d::HashStore>(), axis, connect, backends = {});
  EXPECT_EQ(connected.back(), "pp");
  EXPECT_NE(backends.device, nullptr);
}

// Two ranks that connect wait for each other, and then need one unit of time for it. What a rank waits must not grow
// with the ranks: each has a minute in all.
TEST(C10dCommunicator, PairsConnectSideBySide) {
  for (int size = 2; size < 40; ++size) {
    std::map<std::string, std::vector<int>> ranks_of;
    std::vector<std::vector<std::string>> calls(static_cast<size_t>(size));
    for (int rank = 0; rank < size; ++rank) {
      worker::AxisRank axis;
      axis.axis = "pp";
      axis.rank = rank;
      axis.size = size;
      axis.pairs_apart = true;
      const auto connect = [&](const auto& /*store*/, const worker::AxisRank& pair) {
        ranks_of[pair.axis].push_back(rank);
        calls[static_cast<size_t>(rank)].push_back(pair.axis);
        return c10::make_intrusive<KeepingBackend>();
      };
      worker::AxisBackends backends;
      worker::ConnectOnDevice(c10::make_intrusive<c10d::HashStore>(), axis, connect, backends);
      for (const int neighbour : {(rank + 1) % size, (rank + size - 1) % size}) {
        EXPECT_NE(backends.to[static_cast<size_t>(neighbour)], nullptr) << rank << " to " << neighbour;
        EXPECT_NE(backends.from[static_cast<size_t>(neighbour)], nullptr) << neighbour << " to " << rank;
      }
    }
    std::vector<size_t> done(calls.size());
    int time = 0;
    for (bool moved = true; moved; time += moved ? 1 : 0) {
      moved = false;
      std::vector<size_t> next = done;
      for (const auto& [pair, ranks] : ranks_of) {
        ASSERT_EQ(ranks.size(), 2u) << pair;
        const auto waits = [&](int rank) {
          const auto& own = calls[static_cast<size_t>(rank)];
          const size_t at = done[static_cast<size_t>(rank)];
          return at < own.size() && own[at] == pair;
        };
        if (!waits(ranks[0]) || !waits(ranks[1])) continue;
        for (const int rank : ranks) ++next[static_cast<size_t>(rank)];
        moved = true;
      }
      done = next;
    }
    for (size_t rank = 0; rank < calls.size(); ++rank) EXPECT_EQ(done[rank], calls[rank].size()) << "a circle of waits";
    EXPECT_LE(time, size == 2 ? 2 : size % 2 == 0 ? 4 : 6) << size << " ranks";
  }
}

// Writes down its calls, of two ranks that are alike.
class FillingBackend final : public c10d::Backend {
 public:
  explicit FillingBackend(int64_t received) : Backend(0, 2), received_(received) {}
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& values, const c10d::AllreduceOptions&) override {
    values[0].mul_(2);
    return Called("all-reduce", values[0]);
  }
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& values, int to, int /*tag*/) override {
    return Called("send to " + std::to_string(to), values[0]);
  }
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& values, int from, int /*tag*/) override {
    values[0].fill_(received_);
    return Called("receive from " + std::to_string(from), values[0]);
  }

  std::vector<std::string> calls;

 private:
  c10::intrusive_ptr<c10d::Work> Called(const std::string& what, const at::Tensor& value) {
    calls.push_back(what + " on " + c10::DeviceTypeName(value.device().type(), /*lower_case=*/true));
    return c10::make_intrusive<EndedWork>();
  }

  const int64_t received_;
};

// NCCL connects what a call needs at the first one of its kind: in a step there may be no memory for it.
TEST(WarmUp, TheFirstCallIsOfTheKindThatFollows) {
  const auto calls = [](const worker::AxisRank& ranks, int64_t received = 1) {
    FillingBackend backend(received);
    worker::WarmUp(backend, ranks, MakeFakeDeviceBackend().device);
    return backend.calls;
  };
  worker::AxisRank ranks;
  ranks.axis = "data";
  ranks.size = 2;
  using Calls = std::vector<std::string>;
  EXPECT_EQ(calls(ranks), Calls{"all-reduce on privateuseone"});
  ranks.one_way = true;
  EXPECT_EQ(calls(ranks), Calls{"send to 1 on privateuseone"});
  ranks.rank = 1;
  EXPECT_EQ(calls(ranks), Calls{"receive from 0 on privateuseone"});
  EXPECT_THROW(calls(ranks, 7), c10::Error);
}

std::string TextOf(const std::string& what) {
  const absl::Status status = worker::CatchC10d(absl::Seconds(7), [&] {
    throw c10::DistBackendError(c10::SourceLocation{"f", "NCCLUtils.hpp", 9}, what);
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  return std::string(status.message());
}

constexpr char kPlace[] = "NCCL error in: /torch/NCCLUtils.hpp:94, unhandled error, NCCL version 2.28.9\n";

// As PyTorch 2.11 and NCCL 2.28 write them.
TEST(CatchC10d, NcclsOwnReasonIsQuoted) {
  EXPECT_EQ(TextOf(std::string(kPlace) + "ncclInternalError: Internal check failed.\nLast error:\nno GDR buffer"),
            "NCCL failed on this rank (NCCL error in: /torch/NCCLUtils.hpp:94, unhandled error, NCCL version 2.28.9 "
            "ncclInternalError: Internal check failed. Last error: no GDR buffer)");
  EXPECT_EQ(TextOf(std::string(kPlace) + "ncclInvalidUsage: This usually reflects invalid usage."),
            "NCCL failed on this rank (NCCL error in: /torch/NCCLUtils.hpp:94, unhandled error, NCCL version 2.28.9 "
            "ncclInvalidUsage: This usually reflects invalid usage.)");
}

TEST(CatchC10d, ALongWordBeforeTheReasonIsCut) {
  const std::string text = TextOf(kPlace + std::string(1000, 'a') + "\nLast error:\nreason" + std::string(1000, 'b'));
  EXPECT_NE(text.find("aLast error: reasonb"), std::string::npos) << text;
  EXPECT_EQ(text.size(), std::string("NCCL failed on this rank ()").size() + 600);
}

TEST(CatchC10d, NcclSpeaksOfAPeer) {
  const std::string peer = TextOf(
      std::string(kPlace) + "ncclRemoteError: A call failed possibly due to a network error or a remote process.");
  EXPECT_EQ(peer.substr(0, peer.find(" (")), "a peer has ended, or was killed") << peer;
  const std::string refuses =
      TextOf(std::string(kPlace) + "ncclSystemError: System call.\nLast error:\nConnection refused");
  EXPECT_EQ(refuses.substr(0, refuses.find(" (")),
            "a peer refuses the connection: it has ended, or listens on another address");
  const std::string late = TextOf("Watchdog caught collective operation timeout: WorkNCCL");
  EXPECT_EQ(late.substr(0, late.find(" (")),
            "timed out after 7s: a peer hangs, is stopped, cannot be reached, or was killed inside a message");
  const std::string store = TextOf("retrieving ncclUniqueId: store->get('0') got error: socket closed");
  EXPECT_EQ(store.substr(0, store.find(" (")), "a peer has ended, or was killed");
}

// NCCL calls CUDA on this rank's device alone.
TEST(CatchC10d, NcclSpeaksOfThisRanksDevice) {
  const std::string text = TextOf(
      std::string(kPlace) + "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 700");
  EXPECT_EQ(text.substr(0, text.find(" (")), "this rank's own device failed") << text;
  EXPECT_NE(text.find("Last error: Cuda failure 700"), std::string::npos) << text;
}

}  // namespace
}  // namespace stemma::testing
