#include "common/base/device_name.h"

#include <gtest/gtest.h>

#include <string>

namespace stemma {
namespace {

TEST(DeviceName, ReadsAndOrders) {
  EXPECT_EQ(ParseDevice("cpu")->Text(), "cpu:0");
  EXPECT_EQ(ParseDevice("cuda:12")->Text(), "cuda:12");
  EXPECT_EQ(*ParseDevice("cpu"), *ParseDevice("cpu:0")) << "one device, written twice";
  EXPECT_LT(*ParseDevice("cpu:2"), *ParseDevice("cpu:10")) << "by number, not by text";
  EXPECT_LT(*ParseDevice("cpu:10"), *ParseDevice("cuda:0"));
}

TEST(DeviceName, RefusesOthers) {
  for (const std::string text : {"", ":0", "cpu:", "cpu:-1", "cpu:+1", "cpu: 1", "cpu:4096", "cpu:99999999999", "CPU",
                                 "../x", "cpu:0:1", "cpu:1x"}) {
    EXPECT_EQ(ParseDevice(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
  EXPECT_FALSE(ParseDevice(std::string(33, 'a')).ok());
}

}  // namespace
}  // namespace stemma
