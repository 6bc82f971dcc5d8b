#include "worker/rpc/own_address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/base/unique_fd.h"

namespace stemma::worker {
namespace {

// Long enough for a connection in one data center; a packet that is lost is sent again after a second.
constexpr int kConnectsWithinMs = 1'000;

using Found = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

absl::Status NoRoute(const HostPort& server, std::string_view why) {
  return absl::UnavailableError(absl::StrCat("cannot tell by which address of this host other workers reach it: ",
                                             server.Text(), ": ", std::string(why), "; give it with --address"));
}

// Tells the address that a connected socket is bound to; empty, with errno: it cannot be told.
std::string SourceOf(const UniqueFd& connected) {
  sockaddr_storage own{};
  socklen_t bytes = sizeof(own);
  if (::getsockname(connected.get(), reinterpret_cast<sockaddr*>(&own), &bytes) != 0) return "";
  char text[INET6_ADDRSTRLEN] = "";
  if (own.ss_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<sockaddr_in*>(&own)->sin_addr, text, sizeof(text));
  } else {
    inet_ntop(AF_INET6, &reinterpret_cast<sockaddr_in6*>(&own)->sin6_addr, text, sizeof(text));
  }
  return text;
}

// Tells the address from which packets to the target would leave; empty, with errno: no route.
std::string SourceOfRoute(const addrinfo& target) {
  const UniqueFd descriptor(::socket(target.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const bool routed = descriptor.valid() && ::connect(descriptor.get(), target.ai_addr, target.ai_addrlen) == 0;
  return routed ? SourceOf(descriptor) : "";
}

// Tells the address from which the target was connected to; empty: it could not be in time.
std::string SourceOfConnection(const addrinfo& target) {
  const UniqueFd descriptor(::socket(target.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!descriptor.valid()) return "";
  if (::connect(descriptor.get(), target.ai_addr, target.ai_addrlen) != 0) {
    pollfd waits{descriptor.get(), POLLOUT, 0};
    if (errno != EINPROGRESS || ::poll(&waits, 1, kConnectsWithinMs) != 1) return "";
    int error = 0;
    socklen_t bytes = sizeof(error);
    if (::getsockopt(descriptor.get(), SOL_SOCKET, SO_ERROR, &error, &bytes) != 0 || error != 0) return "";
  }
  return SourceOf(descriptor);
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
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (const int error = getaddrinfo(host.c_str(), absl::StrCat(server.port).c_str(), &hints, &list); error != 0) {
    return NoRoute(server, gai_strerror(error));
  }
  const Found found(list, &freeaddrinfo);
  return OwnAddressTowardsOneOf(server, found.get());
}

absl::StatusOr<std::string> OwnAddressTowardsOneOf(const HostPort& server, const addrinfo* targets) {
  const bool several = targets != nullptr && targets->ai_next != nullptr;
  for (const addrinfo* target = targets; several && target != nullptr; target = target->ai_next) {
    std::string own = SourceOfConnection(*target);
    if (!own.empty() && CheckOwnAddress(own).ok()) return own;
  }
  std::string why = "no address of its can be used";
  for (const addrinfo* target = targets; target != nullptr; target = target->ai_next) {
    std::string own = SourceOfRoute(*target);
    if (!own.empty() && CheckOwnAddress(own).ok()) return own;
    if (own.empty()) why = std::strerror(errno);
  }
  return NoRoute(server, why);
}

}  // namespace stemma::worker
