// What libFuzzer asks of a target before it begins: with --write-seeds=FOLDER the seeds are written there, and nothing
// else is done.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/quiet.h"

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  stemma::fuzz::BeQuiet();
  constexpr std::string_view kOption = "--write-seeds=";
  for (int i = 1; i < *argc; ++i) {
    const std::string_view argument = (*argv)[i];
    if (argument.substr(0, kOption.size()) != kOption) continue;
    const std::filesystem::path folder(argument.substr(kOption.size()));
    std::filesystem::create_directories(folder);
    const std::vector<std::string> seeds = stemma::fuzz::Seeds();
    for (size_t n = 0; n < seeds.size(); ++n) {
      std::ofstream(folder / ("seed-" + std::to_string(n)), std::ios::binary) << seeds[n];
    }
    std::exit(0);
  }
  return 0;
}
