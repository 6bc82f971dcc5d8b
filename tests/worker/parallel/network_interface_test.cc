#include "worker/parallel/network_interface.h"

#include <gtest/gtest.h>

#include "tests/testing/namespaces.h"

namespace stemma::testing {
namespace {

TEST(NetworkInterface, TheLoopbacksAddressIsItsOwn) {
  const auto name = worker::InterfaceOf("127.0.0.1");
  ASSERT_TRUE(name.has_value());
  EXPECT_EQ(name->substr(0, 2), "lo");
}

// 192.0.2.0/24 is for documentation: no host has one of it.
TEST(NetworkInterface, WhatIsNoAddressOfThisHostHasNone) {
  for (const char* address : {"192.0.2.7", "::2", "127.0.0", "localhost", ""}) {
    EXPECT_FALSE(worker::InterfaceOf(address).has_value()) << address;
  }
}

}  // namespace
}  // namespace stemma::testing
