// What a worker reads of its environment beside its command line.
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

}  // namespace
}  // namespace stemma::testing
