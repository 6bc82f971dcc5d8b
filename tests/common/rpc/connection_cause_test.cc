#include "common/rpc/connection_cause.h"

#include "gtest/gtest.h"

namespace stemma {
namespace {

const TlsFiles kTls = {.cert = "", .key = "", .ca = "ca.pem"};

// What gRPC 1.51 with OpenSSL, and newer ones with BoringSSL, say.
TEST(ConnectionCauseTest, TellsByGrpcsText) {
  EXPECT_EQ(
      ConnectionCause("failed to connect to all addresses; last error: UNKNOWN: Failed to connect to remote host: "
                      "Connection refused",
                      kTls),
      "no process listens there");
  for (const char* text :
       {"Ssl handshake failed: SSL_ERROR_SSL: error:0A000086:SSL routines::certificate verify failed",
        "OPENSSL_internal:CERTIFICATE_VERIFY_FAILED: unable to get local issuer certificate"}) {
    EXPECT_EQ(ConnectionCause(text, kTls), "no CA of --tls-ca signed the server's certificate") << text;
  }
  EXPECT_EQ(ConnectionCause("OPENSSL_internal:CERTIFICATE_VERIFY_FAILED: certificate has expired: OK", kTls),
            "the server's certificate has ended");
  EXPECT_EQ(ConnectionCause("CERTIFICATE_VERIFY_FAILED: certificate is not yet valid", kTls),
            "the server's certificate begins later: look at both clocks");
  EXPECT_EQ(ConnectionCause("Custom verification check failed with error: UNAUTHENTICATED: Hostname Verification Check "
                            "failed.",
                            kTls),
            "the server's certificate is not of this host");
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
