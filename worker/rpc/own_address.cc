#include "worker/rpc/own_address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/base/unique_fd.h"

namespace stemma::worker {
namespace {

using Found = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

absl::Status NoRoute(const HostPort& server, std::string_view why) {
  return absl::UnavailableError(absl::StrCat("cannot tell by which address of this host other workers reach it: ",
                                             server.Text(), ": ", std::string(why), "; give it with --address"));
}

// The address that a socket of datagrams is bound to when it is connected; empty, with errno: no route.
std::string SourceOf(const addrinfo& target) {
  const UniqueFd descriptor(::socket(target.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!descriptor.valid()) return "";
  sockaddr_storage own{};
  socklen_t bytes = sizeof(own);
  auto* generic = reinterpret_cast<sockaddr*>(&own);
  const bool known = ::connect(descriptor.get(), target.ai_addr, target.ai_addrlen) == 0 &&
                     ::getsockname(descriptor.get(), generic, &bytes) == 0;
  const int error = errno;
  char text[INET6_ADDRSTRLEN] = "";
  if (known && own.ss_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<sockaddr_in*>(&own)->sin_addr, text, sizeof(text));
  } else if (known) {
    inet_ntop(AF_INET6, &reinterpret_cast<sockaddr_in6*>(&own)->sin6_addr, text, sizeof(text));
  }
  errno = error;
  return text;
}

}  // namespace

absl::Status CheckOwnAddress(std::string_view address) {
  in_addr v4;
  in6_addr v6;
  const std::string text(address);
  bool right = false;
  if (inet_pton(AF_INET, text.c_str(), &v4) == 1) {
    right = v4.s_addr != INADDR_ANY && v4.s_addr != INADDR_BROADCAST && !IN_MULTICAST(ntohl(v4.s_addr));
  } else if (inet_pton(AF_INET6, text.c_str(), &v6) == 1) {
    // A link-local address means nothing without the name of an interface, which other hosts name otherwise.
    right = !IN6_IS_ADDR_UNSPECIFIED(&v6) && !IN6_IS_ADDR_MULTICAST(&v6) && !IN6_IS_ADDR_LINKLOCAL(&v6);
  }
  if (right) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("\"", text,
                                                 "\" is no IP address of one host: give the one of the interface by "
                                                 "which the other workers reach this one, as in 192.0.2.7"));
}

absl::Status CheckAddressIsHere(const std::string& address) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST;
  addrinfo* list = nullptr;
  if (const int error = getaddrinfo(address.c_str(), nullptr, &hints, &list); error != 0) {
    return absl::InvalidArgumentError(absl::StrCat(address, ": ", gai_strerror(error)));
  }
  const Found found(list, &freeaddrinfo);
  const UniqueFd descriptor(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const bool here = descriptor.valid() && ::bind(descriptor.get(), found->ai_addr, found->ai_addrlen) == 0;
  const int error = errno;
  if (here) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(address, " cannot be listened on: ", std::strerror(error), "; give an address that this host has"));
}

absl::StatusOr<std::string> OwnAddressTowards(const HostPort& server) {
  const std::string host = server.loopback && server.host.find(':') == std::string::npos ? "127.0.0.1" : server.host;
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* list = nullptr;
  if (const int error = getaddrinfo(host.c_str(), absl::StrCat(server.port).c_str(), &hints, &list); error != 0) {
    return NoRoute(server, gai_strerror(error));
  }
  const Found found(list, &freeaddrinfo);
  std::string why = "no address of its can be used";
  for (const addrinfo* target = found.get(); target != nullptr; target = target->ai_next) {
    std::string own = SourceOf(*target);
    if (!own.empty() && CheckOwnAddress(own).ok()) return own;
    if (own.empty()) why = std::strerror(errno);
  }
  return NoRoute(server, why);
}

}  // namespace stemma::worker
