// What CUDA and NCCL are told, that an operator's choice stands, and that the list names all of it.
#include "worker/parallel/cuda_environment.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>

#include "tests/testing/namespaces.h"

namespace stemma::testing {
namespace {

class CudaEnvironment : public ::testing::Test {
 protected:
  void SetUp() override { Clear(); }
  void TearDown() override { Clear(); }
  static void Clear() {
    for (const char* name : worker::kToldVariables) unsetenv(name);
  }
  static std::map<std::string, std::string> Environment() {
    std::map<std::string, std::string> all;
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string text = *entry;
      all[text.substr(0, text.find('='))] = text.substr(text.find('=') + 1);
    }
    return all;
  }
};

TEST_F(CudaEnvironment, EverythingThatIsToldIsInTheList) {
  const auto before = Environment();
  worker::TellCuda();
  worker::TellNccl("127.0.0.1");
  auto told = Environment();
  for (const auto& [name, value] : before) {
    EXPECT_EQ(told[name], value);
    told.erase(name);
  }
  EXPECT_EQ(told["NCCL_SOCKET_IFNAME"].substr(0, 3), "=lo");
  told.erase("NCCL_SOCKET_IFNAME");
  const std::map<std::string, std::string> expected = {{"CUDA_DEVICE_MAX_CONNECTIONS", "32"},
                                                       {"CUDA_MODULE_LOADING", "EAGER"},
                                                       {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "0"},
                                                       {"TORCH_NCCL_RETHROW_CUDA_ERRORS", "0"}};
  EXPECT_EQ(told, expected);
  Clear();
  EXPECT_EQ(Environment(), before) << "the list lacks one";
}

TEST_F(CudaEnvironment, AnOperatorsChoiceStands) {
  for (const char* name : worker::kToldVariables) setenv(name, "chosen", /*overwrite=*/1);
  worker::TellCuda();
  worker::TellNccl("127.0.0.1");
  for (const char* name : worker::kToldVariables) EXPECT_EQ(Environment()[name], "chosen") << name;
}

// 192.0.2.0/24 is for documentation: no host has one of it.
TEST_F(CudaEnvironment, AnAddressThatIsNotHereNamesNoInterface) {
  worker::TellNccl("192.0.2.7");
  EXPECT_FALSE(Environment().contains("NCCL_SOCKET_IFNAME"));
  EXPECT_EQ(Environment()["TORCH_NCCL_RETHROW_CUDA_ERRORS"], "0");
}

}  // namespace
}  // namespace stemma::testing
