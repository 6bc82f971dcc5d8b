#include "common/rpc/connection_cause.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace stemma {
namespace {

constexpr char kAnotherHost[] = "the server's certificate does not name this host among its subject alternative names";

// A part of gRPC's text in small letters, and what it means. The first that is found counts.
struct Cause {
  const char* part;
  const char* words;
};

constexpr Cause kCauses[] = {
    {"connection refused", "no process listens there"},
    {"hostname verification", kAnotherHost},
    {"does not match ssl server name", kAnotherHost},
    {"certificate verify failed",
     "the server's certificate is not accepted: no CA of --tls-ca signed it, or an intermediate is missing in the "
     "server's --tls-cert, or it has ended, or is not for servers"},
    {"wrong version number", "the server speaks no TLS: give it --tls-cert, or leave out --tls-ca and STEMMA_TLS_CA"},
};

// Who is not let in is told no more than that.
constexpr const char* kClosed[] = {"socket closed", "connection reset", "broken pipe"};

}  // namespace

std::string ConnectionCause(std::string_view grpc_text, const TlsFiles& tls) {
  const std::string text = absl::StrReplaceAll(absl::AsciiStrToLower(std::string(grpc_text)), {{"_", " "}});
  for (const Cause& cause : kCauses) {
    if (text.find(cause.part) != std::string::npos) return cause.words;
  }
  for (const char* part : kClosed) {
    if (text.find(part) == std::string::npos) continue;
    return absl::StrCat("the connection is closed at once: ",
                        tls.any()
                            ? "where the server has --tls-ca it wants a certificate that one of these CAs signed, "
                              "by --tls-cert and --tls-key"
                            : "where the server speaks TLS, which --tls-cert makes it do, --tls-ca is needed",
                        "; or it takes no more connections");
  }
  return "";
}

}  // namespace stemma
