// The device that the tests of this folder run on: the first CUDA device, or the one that the environment variable
// STEMMA_TEST_DEVICE names ("cpu", "cuda:1"). On the CPU the same tests show, where no GPU is, that they are right.
//
// A process opens it before it makes any tensor, in main's first lines: test_device.cc brings an environment of
// GoogleTest that does so. Where it cannot be opened, tests skip and say why.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "common/model/model_config.h"
#include "tests/testing/namespaces.h"
#include "worker/backend/backend.h"

namespace stemma::testing {

// Why there is no device; empty where there is one.
const std::string& NoTestDevice();
// Whether it is not the host.
bool OnGpu();
// Its backend for runs in "fp32" or "bf16" with this model's attention; checked once.
const Backend& DeviceBackend(const std::string& dtype, const ModelConfig& model);

// Tests that need the device derive from this.
class DeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!NoTestDevice().empty()) GTEST_SKIP() << NoTestDevice();
  }
};

}  // namespace stemma::testing
