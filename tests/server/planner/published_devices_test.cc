// Devices on sale: what they have, and which of the planner's rates follow their memory's speed.
#include "server/planner/published_devices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/namespaces.h"

namespace stemma::testing {
namespace {

TEST(PublishedDevicesTest, AreFoundByTheNamesThatAreListed) {
  EXPECT_THAT(PublishedDeviceNames(), ::testing::ElementsAre("h100", "h200", "h20"));
  for (const std::string& name : PublishedDeviceNames()) {
    ASSERT_NE(FindPublishedDevice(name), nullptr) << name;
    EXPECT_EQ(FindPublishedDevice(name)->name, name);
  }
  EXPECT_EQ(FindPublishedDevice("cpu"), nullptr);
  EXPECT_EQ(FindPublishedDevice(""), nullptr);
}

TEST(PublishedDevicesTest, HaveTheMemoryThatIsPublishedApartFromTheHosts) {
  EXPECT_EQ(FindPublishedDevice("h100")->memory.device_free_bytes, 80'000'000'000);
  EXPECT_EQ(FindPublishedDevice("h200")->memory.device_free_bytes, 141'000'000'000);
  EXPECT_EQ(FindPublishedDevice("h200")->memory.host_free_bytes, 250'000'000'000);
}

TEST(PublishedDevicesTest, AnH200HasTheDefaultRates) {
  for (const v1::OptimizerResidency residency : {v1::DEVICE, v1::HOST}) {
    const Rates rates = RatesOf(*FindPublishedDevice("h200"), RunDtype::kBf16, residency);
    EXPECT_EQ(rates.seconds, DefaultRates(RunDtype::kBf16, 1, "cuda", residency).seconds);
    EXPECT_TRUE(rates.copies_overlap);
  }
}

TEST(PublishedDevicesTest, AnH100IsSlowerWhereMemoryDecides) {
  for (const v1::OptimizerResidency residency : {v1::DEVICE, v1::HOST}) {
    const Rates h100 = RatesOf(*FindPublishedDevice("h100"), RunDtype::kBf16, residency);
    const Rates h200 = RatesOf(*FindPublishedDevice("h200"), RunDtype::kBf16, residency);
    for (const Rate rate : {kElement, kMerge, kWave, kWaveBackward}) {
      EXPECT_DOUBLE_EQ(h100[rate], h200[rate] * 4.8 / 3.35) << kRateNames[rate];
    }
    EXPECT_DOUBLE_EQ(h100[kParameter], h200[kParameter] * (residency == v1::HOST ? 1 : 4.8 / 3.35));
    for (const Rate rate :
         {kLinear, kAttentionForward, kAttentionBackward, kHead, kCopy, kTensorByte, kDataCollective}) {
      EXPECT_EQ(h100[rate], h200[rate]) << kRateNames[rate];
    }
  }
}

TEST(PublishedDevicesTest, AnH20IsSlowerWhereProductsDecide) {
  const Rates h20 = RatesOf(*FindPublishedDevice("h20"), RunDtype::kBf16, v1::DEVICE);
  const Rates h200 = RatesOf(*FindPublishedDevice("h200"), RunDtype::kBf16, v1::DEVICE);
  for (const Rate rate : {kLinear, kHead, kAttentionForward, kAttentionBackward}) {
    EXPECT_DOUBLE_EQ(h20[rate], h200[rate] * 989 / 148) << kRateNames[rate];
  }
  EXPECT_DOUBLE_EQ(h20[kElement], h200[kElement] * 4.8 / 4.0);
  EXPECT_EQ(h20[kCopy], h200[kCopy]);
}

}  // namespace
}  // namespace stemma::testing
