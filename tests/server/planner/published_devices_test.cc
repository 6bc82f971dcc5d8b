// Devices on sale: what they have, and which of the planner's rates follow their memory's speed.
#include "server/planner/published_devices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/namespaces.h"

namespace stemma::testing {
namespace {

TEST(PublishedDevicesTest, AreFoundByTheNamesThatAreListed) {
  EXPECT_THAT(PublishedDeviceNames(), ::testing::ElementsAre("h100", "h200", "h20", "a100"));
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
  EXPECT_EQ(FindPublishedDevice("a100")->memory.device_free_bytes, 80'000'000'000);
}

// Its data sheet has 312 TFLOP/s where an H100 has 989, 2.039 TB/s where it has 3.35, and PCIe of the generation
// before.
TEST(PublishedDevicesTest, AnA100IsSlowerByWhatItsDataSheetSays) {
  const Rates h100 = RatesOf(*FindPublishedDevice("h100"), RunDtype::kBf16, v1::DEVICE);
  const Rates a100 = RatesOf(*FindPublishedDevice("a100"), RunDtype::kBf16, v1::DEVICE);
  EXPECT_NEAR(a100[kLinear] / h100[kLinear], 989.0 / 312, 0.01);
  EXPECT_NEAR(a100[kElement] / h100[kElement], 3.35 / 2.039, 1e-6);
  EXPECT_NEAR(a100[kCopy] / h100[kCopy], 55.0 / 25, 1e-6);
}

TEST(PublishedDevicesTest, AreFoundByWhatDriversCallThem) {
  const std::vector<std::pair<std::string, std::string>> names = {{"cuda NVIDIA H200", "h200"},
                                                                  {"NVIDIA H100 80GB HBM3", "h100"},
                                                                  {"cuda:3 NVIDIA H20", "h20"},
                                                                  {"NVIDIA H100 NVL", "h100"},
                                                                  {"cuda NVIDIA A100-SXM4-80GB", "a100"}};
  for (const auto& [text, name] : names) {
    ASSERT_NE(FindPublishedHardware(text), nullptr) << text;
    EXPECT_EQ(FindPublishedHardware(text)->name, name);
    const Rates rates = DefaultRates(RunDtype::kBf16, 1, absl::StrCat("cuda ", text));
    EXPECT_EQ(rates.seconds, RatesOf(*FindPublishedDevice(name), RunDtype::kBf16, v1::DEVICE).seconds);
    EXPECT_EQ(rates.source, absl::StrCat("published figures of ", name));
  }
  for (const char* text : {"NVIDIA GH200 480GB", "NVIDIA H2000", "Tesla V100-SXM2-16GB", "cuda:0", ""}) {
    EXPECT_EQ(FindPublishedHardware(text), nullptr) << text;
  }
}

TEST(PublishedDevicesTest, AGpuThatIsNotKnownHasAnH100sRatesAndSaysSo) {
  for (const char* device : {"cuda", "cuda:1", "cuda NVIDIA GH200 480GB"}) {
    for (const v1::OptimizerResidency residency : {v1::DEVICE, v1::HOST}) {
      const Rates rates = DefaultRates(RunDtype::kBf16, 1, device, residency);
      EXPECT_EQ(rates.seconds, RatesOf(*FindPublishedDevice("h100"), RunDtype::kBf16, residency).seconds);
      EXPECT_EQ(rates.source, absl::StrCat("published figures of h100, for want of those of \"", device, "\""));
    }
  }
  EXPECT_EQ(DefaultRates(RunDtype::kBf16, 1, "cpu").source, "a CPU core");
}

TEST(PublishedDevicesTest, GpusComputeInTilesBesideTheirCopiesAndACpuDoesNeither) {
  for (const std::string& name : PublishedDeviceNames()) {
    const Rates rates = RatesOf(*FindPublishedDevice(name), RunDtype::kBf16, v1::DEVICE);
    EXPECT_EQ(rates.row_quantum, 128);
    EXPECT_TRUE(rates.copies_overlap);
  }
  const Rates cpu = DefaultRates(RunDtype::kBf16, 1, "cpu");
  EXPECT_EQ(cpu.row_quantum, 1);
  EXPECT_FALSE(cpu.copies_overlap);
}

// By hand: 790 TFLOP/s and 4.3 TB/s of what is published.
TEST(PublishedDevicesTest, AnH200sRatesAreWhatItReaches) {
  const Rates h200 = RatesOf(*FindPublishedDevice("h200"), RunDtype::kBf16, v1::DEVICE);
  EXPECT_DOUBLE_EQ(h200[kLinear], 1 / 7.9e14);
  EXPECT_DOUBLE_EQ(h200[kHead], 1 / 7.9e14);
  EXPECT_DOUBLE_EQ(h200[kAttentionForward], 1 / 6.2e14);
  EXPECT_DOUBLE_EQ(h200[kAttentionBackward], 1 / 4.4e14);
  EXPECT_DOUBLE_EQ(h200[kElement], 2 / 4.3e12);
  EXPECT_NEAR(h200[kWave], 2 / 4.3e12 - 2 * 128 / 7.9e14, 1e-18);
  EXPECT_NEAR(h200[kWaveBackward], h200[kWave] + 8 / 4.3e12, 1e-18) << "fp32 sums are read and written";
  EXPECT_DOUBLE_EQ(h200[kCopy], 1 / 55e9);
  const Rates fp64 = RatesOf(*FindPublishedDevice("h200"), RunDtype::kFp64, v1::DEVICE);
  EXPECT_EQ(fp64[kWave], 0) << "a tile of slow products hides the reading of weights";
  EXPECT_DOUBLE_EQ(fp64[kWaveBackward], 16 / 4.3e12);
}

TEST(PublishedDevicesTest, AnH100IsSlowerWhereMemoryDecides) {
  for (const v1::OptimizerResidency residency : {v1::DEVICE, v1::HOST}) {
    const Rates h100 = RatesOf(*FindPublishedDevice("h100"), RunDtype::kBf16, residency);
    const Rates h200 = RatesOf(*FindPublishedDevice("h200"), RunDtype::kBf16, residency);
    for (const Rate rate : {kElement, kMerge}) {
      EXPECT_DOUBLE_EQ(h100[rate], h200[rate] * 4.8 / 3.35) << kRateNames[rate];
    }
    EXPECT_NEAR(h100[kWaveBackward] - h100[kWave], (h200[kWaveBackward] - h200[kWave]) * 4.8 / 3.35, 1e-18);
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
  EXPECT_EQ(h20[kWave], 0);
  EXPECT_EQ(h20[kCopy], h200[kCopy]);
}

}  // namespace
}  // namespace stemma::testing
