// One rank of c10d_test.py: a process that joins the others and runs what its command line says.
//
//   test_rank MODE RANK SIZE STORE JOIN_SECONDS COLLECTIVE_SECONDS [SEED]
//
// STORE is HOST:PORT; rank 0 opens it (port 0: any) and prints `store HOST:PORT`. Modes:
//   program  runs every collective on two axes in turn, and prints failures and digests
//   device   the same with tensors of the fake device and of the host, by a transport that carries each apart
//   threads  the same with all ranks as threads of this process: each rank's digests
//   reduce   reduces until that fails, prints `ready` after the first time, and in the end waits for its input to end
//   large    as reduce, by reduce-scatters of one message each way, which no socket's buffer holds
//   overlap  as reduce with several in flight, and exits at once
//   rounds   runs every collective again and again until one fails, and waits as reduce does
//
// The messages of all modes but `program`, `device` and `large` are in the kernel as a whole once they are sent, so
// that a rank which is killed leaves no part of one behind: Gloo does not tell who has sent or received a part of one
// that the rest will never pass.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "tests/testing/fake_device.h"
#include "tests/testing/meet.h"
#include "tests/testing/thread_communicator.h"
#include "tests/worker/parallel/device_transport.h"
#include "tests/worker/parallel/rank_program.h"
#include "worker/parallel/gloo_transport.h"
#include "worker/parallel/rendezvous.h"

namespace stemma::testing {
namespace {

using worker::Communicator;
using worker::Rendezvous;

constexpr int64_t kSmallCount = 1 << 10;  // float32 values of one message at most: 4 KiB
constexpr int64_t kLargeCount = 1 << 24;  // 64 MiB

struct Arguments {
  std::string mode;
  int rank, size;
  HostPort store;
  worker::RendezvousTimeouts timeouts;
  uint64_t seed;
};

void Print(const std::string& line) { std::cout << line << std::endl; }

int Failed(const absl::Status& status) {
  Print("error " + status.ToString());
  return 0;
}

void PrintDigests(const ProgramResult& result) {
  for (const std::string& failure : result.failures) Print("failure " + failure);
  Print("digests " + result.common_digest + " " + result.own_digest);
}

// Processes add in the caller's scratch and take no memory of their own: there are then the parts as they came.
void CheckScratch(Communicator& ranks) {
  const at::Tensor input = at::full({8 * ranks.size()}, ranks.rank() + 1.0), scratch = at::zeros_like(input);
  at::Tensor output = at::zeros({8});
  const absl::Status status = ranks.StartReduceScatterSum("scratch", input, output, scratch)->Wait();
  if (!status.ok()) Print("failure " + status.ToString());
  for (int rank = 0; ranks.size() > 1 && rank < ranks.size(); ++rank) {
    if (!scratch.narrow(0, 8 * rank, 8).eq(rank + 1.0).all().item<bool>()) Print("failure scratch is not used");
  }
}

int RunPrograms(Communicator& ranks, Communicator& other_axis, uint64_t seed) {
  PrintDigests(RunRankProgram(ranks, seed));
  PrintDigests(RunRankProgram(other_axis, seed));
  CheckScratch(ranks);
  const auto totals = ranks.stats().Read().at("all_reduce");
  Print("all_reduce " + std::to_string(totals.calls) + " " + std::to_string(totals.bytes));
  return 0;
}

// On an axis that has one queue for all messages, and on one whose directions are apart.
int RunDevicePrograms(Rendezvous& rendezvous, const Arguments& arguments) {
  const auto transport = MakeFakeDeviceTransport();
  for (const bool pairs_apart : {false, true}) {
    auto ranks = rendezvous.Connect(pairs_apart ? "pp" : "dp", arguments.rank, arguments.size, *transport, pairs_apart);
    if (!ranks.ok()) return Failed(ranks.status());
    PrintDigests(RunRankProgram(**ranks, arguments.seed, at::kCPU));
    if (!pairs_apart) PrintDigests(RunRankProgram(**ranks, arguments.seed, transport->device()));
    PrintDigests(RunMessageProgram(**ranks, arguments.seed, at::kCPU));
    PrintDigests(RunMessageProgram(**ranks, arguments.seed, transport->device()));
  }
  return 0;
}

int RunThreads(int size, uint64_t seed) {
  auto ranks = MakeThreadRanks(size, absl::Minutes(1));
  std::vector<ProgramResult> results(ranks.size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < ranks.size(); ++r)
    threads.emplace_back([&, r] { results[r] = RunRankProgram(*ranks[r], seed); });
  for (std::thread& thread : threads) thread.join();
  for (const ProgramResult& result : results) PrintDigests(result);
  return 0;
}

// Stays until the test has heard the others: they do not hear of an error by this process's end.
int FailedAndStays(const std::string& error) {
  Print("error " + error);
  while (std::cin.get() != std::char_traits<char>::eof()) continue;
  return 0;
}

// Calls until a peer is lost. Then the communicator is broken, and says so at once.
int CallUntilLost(Communicator& ranks, const std::function<absl::Status()>& call) {
  absl::Status status = call();
  if (status.ok()) Print("ready");
  while (status.ok()) status = call();
  const double began = RealClock().MonotonicSeconds();
  const bool same = Meet(ranks, "after") == status;
  Print("broken " + std::to_string(same) + " " + std::to_string(RealClock().MonotonicSeconds() - began));
  return FailedAndStays(status.ToString());
}

int ReduceUntilLost(Communicator& ranks) {
  at::Tensor values = at::ones({kSmallCount});
  return CallUntilLost(ranks, [&] {
    values.fill_(1);
    return ranks.AllReduceSum("gradients", values);
  });
}

int ExchangeUntilLost(Communicator& ranks) {
  const at::Tensor input = at::ones({kLargeCount * ranks.size()});
  at::Tensor output = at::ones({kLargeCount});
  return CallUntilLost(ranks, [&] { return ranks.ReduceScatterSum("gradients", input, output); });
}

int RoundsUntilLost(Communicator& ranks, uint64_t seed) {
  for (bool ready = false;; ready = true) {
    const ProgramResult result = RunRankProgram(ranks, ++seed, at::kCPU, kSmallCount / 2);
    if (!result.failures.empty()) return FailedAndStays(result.failures[0]);
    if (!ready) Print("ready");
  }
}

// The same with several collectives in flight; a process that lost a peer ends without destroying the communicator.
int OverlapUntilLost(Communicator& ranks) {
  const at::Tensor input = at::ones({ranks.size() * kSmallCount});
  at::Tensor first = at::ones({kSmallCount}), second = at::ones({kSmallCount}), third = at::ones({kSmallCount});
  bool ready = false;
  while (true) {
    const auto a = ranks.StartReduceScatterSum("a", input, first), b = ranks.StartReduceScatterSum("b", input, second),
               c = ranks.StartReduceScatterSum("c", input, third);
    const absl::Status statuses[] = {a->Wait(), b->Wait(), c->Wait()};
    if (statuses[0].ok() && !ready) Print("ready");
    ready = true;
    for (const absl::Status& status : statuses) {
      if (status.ok()) continue;
      Failed(status);
      ::_exit(0);
    }
  }
}

int Run(const Arguments& arguments) {
  at::set_num_threads(1);
  if (arguments.mode == "threads") return RunThreads(arguments.size, arguments.seed);
  auto rendezvous = arguments.rank == 0 ? Rendezvous::Open(arguments.store, arguments.timeouts)
                                        : Rendezvous::Join(arguments.store, arguments.store.host, arguments.timeouts);
  if (!rendezvous.ok()) return Failed(rendezvous.status());
  if (arguments.rank == 0) Print("store " + (*rendezvous)->address().Text());
  if (arguments.mode == "device") return RunDevicePrograms(**rendezvous, arguments);
  auto ranks = (*rendezvous)->Connect("dp", arguments.rank, arguments.size, *worker::MakeGlooTransport());
  if (!ranks.ok()) return Failed(ranks.status());
  if (arguments.mode == "program") {
    auto other_axis = (*rendezvous)->Connect("tp", arguments.rank, arguments.size, *worker::MakeGlooTransport());
    return other_axis.ok() ? RunPrograms(**ranks, **other_axis, arguments.seed) : Failed(other_axis.status());
  }
  if (arguments.mode == "rounds") return RoundsUntilLost(**ranks, arguments.seed);
  if (arguments.mode == "overlap") return OverlapUntilLost(**ranks);
  return arguments.mode == "large" ? ExchangeUntilLost(**ranks) : ReduceUntilLost(**ranks);
}

}  // namespace
}  // namespace stemma::testing

int main(int argc, char** argv) {
  if (argc < 7) return 2;
  const auto store = stemma::ParseListenAddress(argv[4]);
  if (!store.ok()) return 2;
  const stemma::worker::RendezvousTimeouts timeouts{.join = absl::Seconds(std::atof(argv[5])),
                                                    .collective = absl::Seconds(std::atof(argv[6]))};
  return stemma::testing::Run({.mode = argv[1],
                               .rank = std::atoi(argv[2]),
                               .size = std::atoi(argv[3]),
                               .store = *store,
                               .timeouts = timeouts,
                               .seed = argc > 7 ? std::stoull(argv[7]) : 1});
}
