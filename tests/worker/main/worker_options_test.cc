// What a worker reads of its environment beside its command line, and what it asks of its --address.
#include "worker/main/worker_options.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <iterator>
#include <string>
#include <vector>

#include "tests/testing/namespaces.h"
#include "worker/parallel/cuda_environment.h"

namespace stemma::testing {
namespace {

std::vector<std::string> OpenVariables() {
  char program[] = "stemma-worker", server[] = "--server=127.0.0.1:1";
  char* arguments[] = {program, server, nullptr};
  worker::WorkerMainOptions options;
  int exit_code = 0;
  EXPECT_TRUE(worker::ReadWorkerOptions(2, arguments, options, exit_code)) << exit_code;
  return {options.open_variables.begin(), options.open_variables.end()};
}

// What it tells CUDA later it clears before it starts itself anew, and no operator's choice.
TEST(WorkerOptionsTest, VariablesThatAnOperatorHasSetAreNotOpen) {
  setenv("STEMMA_WORKER_SECRET", "0123456789abcdef0123456789abcdef", /*overwrite=*/1);
  std::vector<std::string> open(std::begin(worker::kToldVariables), std::end(worker::kToldVariables));
  for (const std::string& name : open) unsetenv(name.c_str());
  setenv(open[1].c_str(), "", /*overwrite=*/1);
  open.erase(open.begin() + 1);
  EXPECT_EQ(OpenVariables(), open);
}

// Reads the options of a worker with such an --address and exits, as its main does; 0 where it would run on. A process
// starts its log once.
[[noreturn]] void ReadAndExit(const char* address, bool started_anew) {
  setenv("STEMMA_WORKER_SECRET", "0123456789abcdef0123456789abcdef", /*overwrite=*/1);
  if (started_anew) setenv(worker::kStartedAnewVariable, "1", /*overwrite=*/1);
  const std::string own = std::string("--address=") + address;
  char program[] = "stemma-worker", server[] = "--server=127.0.0.1:1";
  char* arguments[] = {program, server, const_cast<char*>(own.c_str()), nullptr};
  worker::WorkerMainOptions options;
  int exit_code = 0;
  const bool runs = worker::ReadWorkerOptions(3, arguments, options, exit_code);
  const bool kept = std::getenv(worker::kStartedAnewVariable) != nullptr;  // what it starts would think so, too
  std::_Exit(kept ? 3 : (runs ? 0 : exit_code));
}

// 192.0.2.7 is for documents alone.
TEST(WorkerOptionsDeathTest, AWorkerStartedAnewTakesAnAddressThatIsGoneForAMoment) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(ReadAndExit("192.0.2.7", /*started_anew=*/true), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(ReadAndExit("192.0.2.7", /*started_anew=*/false), ::testing::ExitedWithCode(2), "cannot be listened on");
  EXPECT_EXIT(ReadAndExit("node-7", /*started_anew=*/true), ::testing::ExitedWithCode(2), "is no IP address");
}

}  // namespace
}  // namespace stemma::testing
