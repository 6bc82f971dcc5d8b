#include "common/base/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"

namespace stemma {
namespace {

constexpr size_t kHostBytesMax = 253, kLabelBytesMax = 63, kQuotedBytesMax = 80;
constexpr uint32_t kPortMax = 65535;

absl::Status Refuse(std::string_view text, std::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("\"", absl::CEscape(std::string(text.substr(0, kQuotedBytesMax))),
                                                 text.size() > kQuotedBytesMax ? "..." : "", "\" ", std::string(why)));
}

bool IsLabel(const std::string& label) {
  const auto is_label_character = [](char c) { return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-'; };
  return !label.empty() && label.size() <= kLabelBytesMax && label.front() != '-' && label.back() != '-' &&
         std::all_of(label.begin(), label.end(), is_label_character);
}

// A last label of digits alone would be a mistyped IPv4 address: 127.1, 192.0.2.256.
bool IsHostName(const std::string& host) {
  const std::vector<std::string> labels = absl::StrSplit(host, '.');
  const std::string& last = labels.back();
  return host.size() <= kHostBytesMax && std::all_of(labels.begin(), labels.end(), IsLabel) &&
         !std::all_of(last.begin(), last.end(), absl::ascii_isdigit);
}

bool IsLoopbackV4(const in_addr& address) { return ntohl(address.s_addr) >> 24 == 127; }

absl::Status ReadHost(std::string_view text, const std::string& host, bool bracketed, HostPort& result) {
  in_addr v4;
  in6_addr v6;
  result.host = host;
  if (bracketed) {
    if (inet_pton(AF_INET6, host.c_str(), &v6) != 1) return Refuse(text, "holds no IPv6 address in its brackets");
    result.loopback = IN6_IS_ADDR_LOOPBACK(&v6) != 0;
  } else if (inet_pton(AF_INET, host.c_str(), &v4) == 1) {
    result.loopback = IsLoopbackV4(v4);
  } else if (IsHostName(host)) {
    result.loopback = absl::EqualsIgnoreCase(host, "localhost");
  } else {
    return Refuse(text, "names no host: write an IPv4 address, an IPv6 address in brackets, or a name, then :PORT");
  }
  return absl::OkStatus();
}

absl::Status ReadPort(std::string_view text, const std::string& port, HostPort& result) {
  uint32_t value = 0;
  const bool digits = !port.empty() && port.size() <= 5 && std::all_of(port.begin(), port.end(), absl::ascii_isdigit);
  if (!digits || !absl::SimpleAtoi(port, &value) || value > kPortMax) {
    return Refuse(text, absl::StrCat("has no port from 0 to ", kPortMax, " after its last colon"));
  }
  result.port = static_cast<uint16_t>(value);
  return absl::OkStatus();
}

}  // namespace

std::string HostPort::Text() const {
  return host.find(':') == std::string::npos ? absl::StrCat(host, ":", port) : absl::StrCat("[", host, "]:", port);
}

absl::StatusOr<HostPort> ParseListenAddress(std::string_view text) {
  if (text.empty()) return Refuse(text, "is empty: write HOST:PORT, as in 127.0.0.1:7070");
  if (text.substr(0, 5) == "unix:" || text.substr(0, 14) == "unix-abstract:") {
    return Refuse(text, "is a socket of the file system, which is not supported: write HOST:PORT");
  }
  if (const size_t scheme = text.find("://"); scheme != std::string_view::npos) {
    const std::string_view rest = text.substr(scheme + 3);
    return Refuse(text, absl::StrCat("is a URL: give it without ", std::string(text.substr(0, scheme + 3)), ", as ",
                                     std::string(rest.substr(0, rest.find('/')))));
  }
  const size_t colon = text.rfind(':');
  const bool bracketed = text.front() == '[';
  const size_t host_end = bracketed ? text.find(']') : colon;
  if (colon == std::string_view::npos || (bracketed && (host_end == std::string_view::npos || host_end + 1 != colon))) {
    return Refuse(text, "has no port: write HOST:PORT, as in 127.0.0.1:7070");
  }
  const std::string host(text.substr(bracketed ? 1 : 0, host_end - (bracketed ? 1 : 0)));
  if (host.empty()) return Refuse(text, "has no host: write 127.0.0.1 for this machine alone, 0.0.0.0 for all");
  if (!bracketed && host.find(':') != std::string::npos) {
    return Refuse(text, "needs brackets around an IPv6 address, as in [::1]:7070");
  }
  HostPort result;
  RETURN_IF_ERROR(ReadHost(text, host, bracketed, result));
  RETURN_IF_ERROR(ReadPort(text, std::string(text.substr(colon + 1)), result));
  return result;
}

absl::StatusOr<HostPort> ParseDialAddress(std::string_view text) {
  ASSIGN_OR_RETURN(HostPort result, ParseListenAddress(text));
  if (result.port == 0) return Refuse(text, "has port 0, which nobody listens on");
  return result;
}

}  // namespace stemma
