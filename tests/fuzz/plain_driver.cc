// Runs a fuzz target without libFuzzer: each seed as it is, then changed inputs, as many as asked for. The same command
// gives the same inputs, so that it serves as a test of every build; it keeps no corpus and sees no coverage.
//
//   NAME_fuzz [--rounds N] [--seed N] [--last]
//
// The number of the round is written before a crash ends the process; --last runs only the round N, after the seeds.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/split_mix.h"
#include "glog/logging.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/quiet.h"

// A target that has none is changed by bytes.
extern "C" __attribute__((weak)) size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                                                unsigned seed);

namespace stemma::fuzz {
namespace {

constexpr size_t kBytesMax = 1 << 14;
constexpr int kChangesMax = 8;  // from one seed to an input

SplitMix64 bytes_random(0);  // of LLVMFuzzerMutate, which has no argument for one

// Where the run is, for whoever reads of its end.
const char* name = "";
uint64_t seed = 1, round = 0;

void SayWhere(int signal) {
  std::fprintf(stderr, "%s --seed %lu --rounds %lu --last: signal %d\n", name, seed, round, signal);
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void RunOne(const std::string& input) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
}

// The input of a round follows from the seed and its number alone.
std::string Input(const std::vector<std::string>& seeds, uint64_t number) {
  bytes_random = SplitMix64(seed * 1'000'003 + number);
  std::string input = seeds[bytes_random.Next() % seeds.size()];
  const size_t size = input.size();
  input.resize(std::max(size, kBytesMax));
  auto* data = reinterpret_cast<uint8_t*>(input.data());
  size_t now = size;
  for (uint64_t changes = 1 + bytes_random.Next() % kChangesMax; changes > 0; --changes) {
    now = LLVMFuzzerCustomMutator == nullptr
              ? LLVMFuzzerMutate(data, now, input.size())
              : LLVMFuzzerCustomMutator(data, now, input.size(), static_cast<unsigned>(bytes_random.Next()));
  }
  input.resize(now);
  return input;
}

int Main(int argc, char** argv) {
  BeQuiet();
  name = argv[0];
  uint64_t rounds = 1000;
  bool last = false;
  for (int i = 1; i < argc; ++i) {
    const std::string_view option = argv[i];
    if (option == "--last") {
      last = true;
      continue;
    }
    CHECK(i + 1 < argc && (option == "--rounds" || option == "--seed")) << "unknown option " << option;
    (option == "--seed" ? seed : rounds) = std::strtoull(argv[++i], nullptr, 10);
  }
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) std::signal(signal, SayWhere);
  const std::vector<std::string> seeds = Seeds();
  CHECK(!seeds.empty());
  for (const std::string& input : seeds) RunOne(input);
  for (round = last ? rounds : 1; round <= rounds; ++round) RunOne(Input(seeds, round));
  std::printf("%s: %zu seeds, %lu rounds of seed %lu\n", name, seeds.size(), rounds, seed);
  return 0;
}

}  // namespace
}  // namespace stemma::fuzz

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size) {
  constexpr std::string_view kCharacters = "0123456789-.eE{}[]\",:ntf\n \\/";
  stemma::SplitMix64& random = stemma::fuzz::bytes_random;
  const auto below = [&random](size_t bound) { return static_cast<size_t>(random.Next() % bound); };
  const size_t at = size == 0 ? 0 : below(size), room = max_size - size;
  const size_t piece = size == 0 ? 0 : std::min({size - at, room, 1 + below(32)});
  switch (size == 0 ? 3 : below(6)) {
    case 0:
      data[at] = static_cast<uint8_t>(random.Next());
      return size;
    case 1:
      data[at] = static_cast<uint8_t>(data[at] ^ (1u << below(8)));
      return size;
    case 2:
      data[at] = static_cast<uint8_t>(kCharacters[below(kCharacters.size())]);
      return size;
    case 3:  // a byte comes
      if (room == 0) return size;
      std::memmove(data + at + 1, data + at, size - at);
      data[at] = static_cast<uint8_t>(kCharacters[below(kCharacters.size())]);
      return size + 1;
    case 4: {  // some bytes go
      const size_t gone = std::min(size - at, 1 + below(8));
      std::memmove(data + at, data + at + gone, size - at - gone);
      return size - gone;
    }
    default:  // a piece is doubled
      std::memmove(data + at + piece, data + at, size - at);
      return size + piece;
  }
}

int main(int argc, char** argv) { return stemma::fuzz::Main(argc, argv); }
