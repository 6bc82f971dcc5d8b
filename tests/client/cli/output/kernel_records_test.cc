#include "client/cli/output/kernel_records.h"

#include <sstream>

#include "gtest/gtest.h"

namespace stemma::cli {
namespace {

TEST(KernelRecordsTest, EveryKernelThatIsOffIsNamedWithItsRankAndReason) {
  v1::ServerInfo info;
  for (uint32_t rank = 0; rank < 3; ++rank) info.add_ranks()->set_rank(rank);
  const auto add = [&](int rank, const std::string& kernel, const std::string& reason) {
    v1::KernelOff& off = *info.mutable_ranks(rank)->add_kernels_off();
    off.set_kernel(kernel);
    off.set_reason(reason);
  };
  add(0, "attention", "dq_HTE: error 0.4, at most 0.03");
  add(2, "loss", "throws: no");
  add(2, "logits", "throws: no");
  std::ostringstream text;
  WriteRecords({}, KernelOffColumns(), KernelOffRecords(info), text);
  EXPECT_EQ(text.str(),
            "rank  kernel off  reason\n"
            "   0  attention   dq_HTE: error 0.4, at most 0.03\n"
            "   2  loss        throws: no\n"
            "   2  logits      throws: no\n");
}

TEST(KernelRecordsTest, NothingIsSaidWhereAllKernelsAreInUse) {
  v1::ServerInfo info;
  info.add_ranks()->set_device_name("NVIDIA H200");
  EXPECT_TRUE(KernelOffRecords(info).empty());
}

}  // namespace
}  // namespace stemma::cli
