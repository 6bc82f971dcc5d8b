#include "worker/parallel/listen_socket.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace stemma::worker {
namespace {

constexpr int kBacklog = 1024;  // every rank of a large gang may dial at the same moment

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t bytes = 0;
};

sockaddr* Generic(SocketAddress& address) { return reinterpret_cast<sockaddr*>(&address.storage); }

// REQUIRES: a numeric host.
SocketAddress ToSocketAddress(const std::string& host, uint16_t port) {
  SocketAddress address;
  auto* v4 = reinterpret_cast<sockaddr_in*>(&address.storage);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&address.storage);
  if (inet_pton(AF_INET, host.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    address.bytes = sizeof(sockaddr_in);
  } else if (inet_pton(AF_INET6, host.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
    address.bytes = sizeof(sockaddr_in6);
  }
  return address;
}

absl::Status SocketError(const char* what, const HostPort& address) {
  return absl::UnavailableError(absl::StrCat("cannot ", what, " ", address.Text(), ": ", std::strerror(errno)));
}

}  // namespace

absl::StatusOr<std::string> NumericHost(const std::string& host) {
  if (host == "localhost") return "127.0.0.1";
  if (ToSocketAddress(host, 0).bytes == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", host, "\" is no IP address: give the one of the interface that the other workers reach"));
  }
  return host;
}

absl::StatusOr<ListenSocket> ListenSocket::Open(const HostPort& address) {
  ASSIGN_OR_RETURN(const std::string host, NumericHost(address.host));
  SocketAddress socket_address = ToSocketAddress(host, address.port);
  UniqueFd owned(::socket(socket_address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!owned.valid()) return SocketError("open a socket for", address);
  const int descriptor = owned.get();
  ListenSocket listener(std::move(owned), {.host = host, .port = address.port, .loopback = address.loopback});
  const int reuse = 1;
  if (::setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof(reuse)) != 0 ||
      ::bind(descriptor, Generic(socket_address), socket_address.bytes) != 0 || ::listen(descriptor, kBacklog) != 0 ||
      ::getsockname(descriptor, Generic(socket_address), &socket_address.bytes) != 0) {
    return SocketError("listen on", address);
  }
  // sin_port and sin6_port lie at the same place.
  listener.address_.port = ntohs(reinterpret_cast<sockaddr_in*>(&socket_address.storage)->sin_port);
  return listener;
}

ListenSocket::ListenSocket(UniqueFd descriptor, HostPort address)
    : descriptor_(std::move(descriptor)), address_(std::move(address)) {}

}  // namespace stemma::worker
