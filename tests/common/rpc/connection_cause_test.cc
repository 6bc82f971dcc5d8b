#include "common/rpc/connection_cause.h"

#include "gtest/gtest.h"

namespace stemma {
namespace {

const TlsFiles kTls = {.cert = "", .key = "", .ca = "ca.pem"};

TEST(ConnectionCauseTest, TellsByGrpcsText) {
  const struct {
    const char *grpc_text, *words;
  } cases[] = {
      {"failed to connect to all addresses; last error: UNKNOWN: Failed to connect to remote host: Connection refused",
       "no process listens there"},
      // gRPC 1.51 says no more of any certificate that OpenSSL refuses.
      {"Ssl handshake failed: SSL_ERROR_SSL: error:0A000086:SSL routines::certificate verify failed",
       "the server's certificate is not accepted: no CA of --tls-ca signed it"},
      {"Custom verification check failed with error: UNAUTHENTICATED: Hostname Verification Check failed.",
       "does not name this host"},
      {"call host does not match SSL server name", "does not name this host"},
      {"SSL_ERROR_SSL: error:0A00010B:SSL routines::wrong version number", "the server speaks no TLS"},
  };
  for (const auto& one : cases) {
    EXPECT_NE(ConnectionCause(one.grpc_text, kTls).find(one.words), std::string::npos) << one.grpc_text;
  }
}

TEST(ConnectionCauseTest, AClosedConnectionMeansAnotherThingByWhatWasTried) {
  EXPECT_NE(ConnectionCause("UNAVAILABLE: Socket closed", kTls).find("--tls-key"), std::string::npos);
  EXPECT_NE(ConnectionCause("recvmsg:Connection reset by peer", {}).find("--tls-ca is needed"), std::string::npos);
}

TEST(ConnectionCauseTest, OfWhatIsNotKnownNothingIsSaid) {
  EXPECT_EQ(ConnectionCause("", kTls), "");
  EXPECT_EQ(ConnectionCause("Deadline Exceeded", {}), "");
}

}  // namespace
}  // namespace stemma
