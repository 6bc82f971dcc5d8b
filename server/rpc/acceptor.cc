#include "server/rpc/acceptor.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/descriptors.h"
#include "common/base/steady_time.h"
#include "glog/logging.h"

namespace stemma::server {
namespace {

constexpr int kBacklog = 1024;
constexpr int kDescriptorsKept = 64;   // from clients: for workers, files, gRPC's own events
constexpr int kDescriptorsSpare = 16;  // from everyone
constexpr int kRetryMs = 100;

struct Addresses {
  addrinfo* first = nullptr;
  ~Addresses() {
    if (first != nullptr) freeaddrinfo(first);
  }
};

uint16_t PortOf(int socket) {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                                             : reinterpret_cast<sockaddr_in*>(&address)->sin_port);
}

void SetPort(sockaddr* address, uint16_t port) {
  if (address->sa_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(address)->sin6_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in*>(address)->sin_port = htons(port);
  }
}

// 0: it is not open.
ino_t InodeOf(int fd) {
  struct stat info;
  return fstat(fd, &info) == 0 ? info.st_ino : 0;
}

// None: errno says why not. Accepted sockets inherit TCP_NODELAY.
UniqueFd ListenOn(const addrinfo& address) {
  UniqueFd fd(socket(address.ai_family, address.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, address.ai_protocol));
  if (!fd.valid()) return fd;
  const int on = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  if (bind(fd.get(), address.ai_addr, address.ai_addrlen) != 0 || listen(fd.get(), kBacklog) != 0) fd.Reset();
  return fd;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Acceptor>> Acceptor::Open(const AcceptorOptions& options) {
  std::unique_ptr<Acceptor> self(new Acceptor(options));
  addrinfo hints = {};
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  Addresses addresses;
  const int failure = getaddrinfo(options.host.c_str(), absl::StrCat(options.port).c_str(), &hints, &addresses.first);
  if (failure != 0) {
    return absl::UnavailableError(absl::StrCat("cannot listen on ", options.host, ": ", gai_strerror(failure)));
  }
  self->port_ = options.port;
  int error = 0;
  for (addrinfo* address = addresses.first; address != nullptr; address = address->ai_next) {
    SetPort(address->ai_addr, self->port_);  // with port 0: the one that the first address got
    UniqueFd fd = ListenOn(*address);
    if (!fd.valid()) {
      error = errno;
      continue;
    }
    self->port_ = PortOf(fd.get());
    self->listeners_.push_back(std::move(fd));
  }
  if (self->listeners_.empty()) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", options.host, " port ", options.port, ": ", strerror(error)));
  }
  self->wake_.Reset(eventfd(0, EFD_CLOEXEC));
  if (!self->wake_.valid()) return absl::UnavailableError(absl::StrCat("eventfd: ", strerror(errno)));
  return self;
}

Acceptor::~Acceptor() { Stop(); }

void Acceptor::AddTo(grpc::ServerBuilder& builder, const std::shared_ptr<grpc::ServerCredentials>& credentials) {
  grpc_ = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, credentials);
}

absl::Status Acceptor::Start(const Clock& clock) {
  const DescriptorCount count = CountDescriptors();
  const auto limit = static_cast<int64_t>(count.limit), open = static_cast<int64_t>(count.open);
  const int64_t wanted = open + static_cast<int64_t>(connections_max_);
  descriptor_max_ = static_cast<int>(limit - kDescriptorsSpare);
  if (connections_max_ > 0) descriptor_max_ = static_cast<int>(std::min(limit - kDescriptorsKept, wanted));
  if (descriptor_max_ <= open) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the process may open ", limit, " files (RLIMIT_NOFILE, `ulimit -n`), has ", open, " open and keeps ",
        limit - descriptor_max_, " from connections, so that it could take none: raise the limit to ",
        open + limit - descriptor_max_ + static_cast<int64_t>(std::max<uint64_t>(1, connections_max_))));
  }
  if (descriptor_max_ < wanted) {
    LOG(WARNING) << "at most " << descriptor_max_ - open << " connections are taken instead of " << connections_max_
                 << " (limits.connections): the process may open " << count.limit << " files (RLIMIT_NOFILE)";
  }
  // A cap that descriptors do not allow is never reached, and without one they are the only bound.
  refusal_ = descriptor_max_ == wanted ? absl::StrCat("connections are refused: at most ", connections_max_,
                                                      " are taken (limits.connections)")
                                       : absl::StrCat("connections are refused: few descriptors are left of the ",
                                                      limit, " that the process may open (RLIMIT_NOFILE)");
  thread_ = std::thread([this, &clock] { Run(clock); });
  return absl::OkStatus();
}

void Acceptor::Stop() {
  const uint64_t one = 1;
  if (thread_.joinable()) {
    CHECK_EQ(write(wake_.get(), &one, sizeof(one)), static_cast<ssize_t>(sizeof(one)));
    thread_.join();
  }
}

void Acceptor::Run(const Clock& clock) {
  std::vector<pollfd> waiting = {{.fd = wake_.get(), .events = POLLIN, .revents = 0}};
  for (const UniqueFd& fd : listeners_) waiting.push_back({.fd = fd.get(), .events = POLLIN, .revents = 0});
  bool failed = false;
  while (true) {
    // After a failure the listeners, which are still readable, are left alone for a while.
    const int ready = poll(waiting.data(), failed ? 1 : waiting.size(), failed ? kRetryMs : -1);
    if (ready > 0 && waiting[0].revents != 0) return;
    failed = false;
    for (const UniqueFd& fd : listeners_) failed = !AcceptFrom(fd.get()) || failed;
    if (!problem_.empty()) Say(SteadyNow(clock), std::exchange(problem_, ""));
  }
}

bool Acceptor::AcceptFrom(int listener) {
  while (true) {
    const int fd = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) return true;
      if (errno == EINTR || errno == ECONNABORTED) continue;
      problem_ = absl::StrCat("a connection cannot be accepted yet: ", strerror(errno));
      return false;
    }
    if (fd >= descriptor_max_) {
      problem_ = refusal_;
      close(fd);
      continue;
    }
    if (!CountIn(fd)) {
      problem_ = absl::StrCat("a connection to port ", port_, " is closed at once: ", own_max_, " are open there, and ",
                              "more are not taken");
      close(fd);
      continue;
    }
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
    connection.listener_fd = listener;
    connection.fd = fd;
    grpc_->HandleNewConnection(&connection);
  }
}

bool Acceptor::CountIn(int fd) {
  if (own_max_ == 0) return true;
  if (counted_.size() >= own_max_) {
    std::erase_if(counted_, [](const Connection& one) { return InodeOf(one.fd) != one.inode; });
  }
  if (counted_.size() >= own_max_) return false;
  counted_.push_back({fd, InodeOf(fd)});
  return true;
}

void Acceptor::Say(absl::Time now, const std::string& text) {
  if (log_limit_.Take(now)) LOG(WARNING) << text << log_limit_.LeftOut();
}

}  // namespace stemma::server
