#include "worker/parallel/network_interface.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <memory>

namespace stemma::worker {
namespace {

// An address's bytes, and of which family they are.
struct Ip {
  int family = AF_UNSPEC;
  std::array<unsigned char, sizeof(in6_addr)> bytes = {};
  bool operator==(const Ip&) const = default;
};

std::optional<Ip> Parse(const std::string& text) {
  for (const int family : {AF_INET, AF_INET6}) {
    Ip ip{.family = family};
    if (inet_pton(family, text.c_str(), ip.bytes.data()) == 1) return ip;
  }
  return std::nullopt;
}

Ip IpOf(const sockaddr& address) {
  Ip ip{.family = address.sa_family};
  if (ip.family == AF_INET) {
    std::memcpy(ip.bytes.data(), &reinterpret_cast<const sockaddr_in&>(address).sin_addr, sizeof(in_addr));
  } else if (ip.family == AF_INET6) {
    std::memcpy(ip.bytes.data(), &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr, sizeof(in6_addr));
  }
  return ip;
}

}  // namespace

std::optional<std::string> InterfaceOf(const std::string& address) {
  const std::optional<Ip> wanted = Parse(address);
  ifaddrs* first = nullptr;
  if (!wanted || getifaddrs(&first) != 0) return std::nullopt;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> list(first, freeifaddrs);
  for (const ifaddrs* one = first; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr != nullptr && IpOf(*one->ifa_addr) == *wanted) return one->ifa_name;
  }
  return std::nullopt;
}

}  // namespace stemma::worker
