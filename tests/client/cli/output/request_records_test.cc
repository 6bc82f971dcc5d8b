#include "client/cli/output/request_records.h"

#include <sstream>

#include "gtest/gtest.h"

namespace stemma::cli {
namespace {

v1::ServerInfo InfoWithLink(double message_s, double byte_s) {
  v1::ServerInfo info;
  v1::LinkInfo& link = *info.add_links();
  link.set_axis("tp");
  link.set_ranks(4);
  link.set_message_s(message_s);
  link.set_byte_s(byte_s);
  return info;
}

TEST(RequestRecordsTest, ALinkIsShownInGigabytesASecondAndMicrosecondsAMessage) {
  const auto records = LinkRecords(InfoWithLink(85e-6, 4e-10));
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0]["axis"], "tp");
  EXPECT_EQ(records[0]["ranks"], 4);
  EXPECT_DOUBLE_EQ(records[0]["gb_per_s"].get<double>(), 2.5);
  EXPECT_DOUBLE_EQ(records[0]["message_us"].get<double>(), 85);
  std::ostringstream text;
  WriteRecords({}, LinkColumns(), records, text);
  EXPECT_EQ(text.str(), "link  ranks  GB/s  us a message\ntp        4   2.5            85\n");
}

TEST(RequestRecordsTest, AServerThatSaysNothingOfALinkIsNotDividedBy) {
  EXPECT_TRUE(LinkRecords(v1::ServerInfo()).empty());
  EXPECT_TRUE(LinkRecords(InfoWithLink(0, 0))[0]["gb_per_s"].is_null());
}

}  // namespace
}  // namespace stemma::cli
