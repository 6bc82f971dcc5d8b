#include "common/rpc/grpc_log.h"

#include "gtest/gtest.h"

namespace stemma {
namespace {

TEST(GrpcLogTest, TheReasonOfAHandshakeIsFoundInGrpcsLine) {
  EXPECT_EQ(
      HandshakeFailure("Handshake failed with fatal error SSL_ERROR_SSL: error:0A0000C7:SSL routines::peer did not "
                       "return a certificate."),
      "peer did not return a certificate.");
  for (const char* line : {"Handshake failed with fatal error SSL_ERROR_SSL: error:0A0000C7:SSL routines:",
                           "Handshake failed: SSL routines::", "Handshake failed with another error", "",
                           "Invalid cert chain file: SSL routines::no start line"}) {
    EXPECT_EQ(HandshakeFailure(line), "") << line;
  }
}

TEST(GrpcLogTest, AFloodOfRefusalsFillsNoLog) {
  testing::internal::CaptureStderr();
  for (int i = 0; i < 1000; ++i) LogRefusedHandshake("certificate verify failed");
  const std::string log = testing::internal::GetCapturedStderr();
  int lines = 0;
  for (size_t at = log.find("somebody is refused"); at != log.npos; at = log.find("somebody is refused", at + 1))
    ++lines;
  EXPECT_GE(lines, 20);
  EXPECT_LE(lines, 40) << "20 in ten seconds, of which two may begin meanwhile";
}

}  // namespace
}  // namespace stemma
