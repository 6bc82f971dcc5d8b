// A worker tells its peers an address that reaches it.
#include "worker/rpc/own_address.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/unique_fd.h"

namespace stemma::worker {
namespace {

using ::testing::HasSubstr;

HostPort Server(const std::string& text) { return *ParseDialAddress(text); }

// IPv4 addresses of this host's interfaces that are up, without loopback.
std::vector<std::string> OutwardAddresses() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owned(list, &freeifaddrs);
  std::vector<std::string> addresses;
  for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != AF_INET) continue;
    if ((i->ifa_flags & IFF_LOOPBACK) != 0 || (i->ifa_flags & IFF_UP) == 0) continue;
    char text[INET_ADDRSTRLEN] = "";
    inet_ntop(AF_INET, &reinterpret_cast<sockaddr_in*>(i->ifa_addr)->sin_addr, text, sizeof(text));
    addresses.emplace_back(text);
  }
  return addresses;
}

TEST(OwnAddressTest, TowardsAServerOnLoopbackItIsLoopback) {
  EXPECT_EQ(OwnAddressTowards(Server("127.0.0.1:7071")).value(), "127.0.0.1");
  EXPECT_EQ(OwnAddressTowards(Server("127.0.0.9:7071")).value(), "127.0.0.1");
  EXPECT_EQ(OwnAddressTowards(Server("localhost:7071")).value(), "127.0.0.1");
  EXPECT_EQ(OwnAddressTowards(Server("LocalHost:7071")).value(), "127.0.0.1");
}

TEST(OwnAddressTest, TowardsAServerElsewhereItIsTheOneThatPacketsLeaveFrom) {
  const std::vector<std::string> outward = OutwardAddresses();
  if (outward.empty()) GTEST_SKIP() << "needs an interface besides loopback";
  // To itself a host speaks from the address that it speaks to.
  for (const std::string& address : outward) EXPECT_EQ(OwnAddressTowards(Server(address + ":7071")).value(), address);
}

TEST(OwnAddressTest, AServerWithoutARouteIsNamed) {
  // Packets to all hosts need a right that the socket does not ask for.
  const auto none = OwnAddressTowards(Server("255.255.255.255:7071"));
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(none.status().message()), HasSubstr("255.255.255.255:7071"));
  EXPECT_THAT(std::string(none.status().message()), HasSubstr("--address"));
}

// A port of a loopback address: bound, and open where it is listened on.
class Port {
 public:
  explicit Port(const std::string& host) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICHOST;
    EXPECT_EQ(getaddrinfo(host.c_str(), "0", &hints, &target_), 0);
    fd_.Reset(::socket(target_->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    bound_ = ::bind(fd_.get(), target_->ai_addr, target_->ai_addrlen) == 0 &&
             ::getsockname(fd_.get(), target_->ai_addr, &target_->ai_addrlen) == 0;
  }
  ~Port() { freeaddrinfo(target_); }
  bool bound() const { return bound_; }
  void Listen(int waiting_max = 8) { EXPECT_EQ(::listen(fd_.get(), waiting_max), 0); }
  // Fills the queue of those that wait to be accepted: nothing is answered any more.
  void Fill() {
    Listen(/*waiting_max=*/0);
    for (UniqueFd& waiting : waiting_) {
      waiting.Reset(::socket(target_->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      ::connect(waiting.get(), target_->ai_addr, target_->ai_addrlen);
    }
  }
  const addrinfo* target() const { return target_; }

 private:
  addrinfo* target_ = nullptr;
  UniqueFd fd_, waiting_[4];
  bool bound_ = false;
};

// Tells the own address towards a server whose name has both addresses, in this order.
std::string OwnAddressTowardsBoth(const Port& first, const Port& second) {
  addrinfo one = *first.target(), two = *second.target();
  one.ai_next = &two;
  two.ai_next = nullptr;
  return OwnAddressTowardsOneOf(Server("server.test:7071"), &one).value();
}

TEST(OwnAddressTest, OfAServersAddressesTheFirstThatAnswersCounts) {
  Port v4("127.0.0.1"), v6("::1"), refuses_v4("127.0.0.1"), refuses_v6("::1"), hangs_v6("::1");
  if (!v6.bound()) GTEST_SKIP() << "needs ::1";
  v4.Listen();
  v6.Listen();
  hangs_v6.Fill();
  EXPECT_EQ(OwnAddressTowardsBoth(refuses_v6, v4), "127.0.0.1");
  EXPECT_EQ(OwnAddressTowardsBoth(hangs_v6, v4), "127.0.0.1");
  EXPECT_EQ(OwnAddressTowardsBoth(refuses_v4, v6), "::1");
  EXPECT_EQ(OwnAddressTowardsBoth(v6, v4), "::1");
  EXPECT_EQ(OwnAddressTowardsBoth(v4, v6), "127.0.0.1");
  // A server that went just now is not waited for here: the first with a route.
  EXPECT_EQ(OwnAddressTowardsBoth(refuses_v6, refuses_v4), "::1");
  EXPECT_EQ(OwnAddressTowardsBoth(refuses_v4, refuses_v6), "127.0.0.1");
}

TEST(OwnAddressTest, AnAddressIsOneOfThisHost) {
  for (const char* here : {"127.0.0.1", "127.0.0.2"}) EXPECT_TRUE(CheckAddressIsHere(here).ok()) << here;
  for (const char* elsewhere : {"192.0.2.7", "2001:db8::7", "node-7"}) {  // the addresses are for documents alone
    const absl::Status status = CheckAddressIsHere(elsewhere);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << elsewhere;
    EXPECT_THAT(std::string(status.message()), HasSubstr(elsewhere));
  }
}

TEST(OwnAddressTest, AnAddressIsTheLiteralOfOneHost) {
  for (const char* right : {"127.0.0.1", "192.0.2.7", "::1", "2001:db8::7"}) {
    EXPECT_TRUE(CheckOwnAddress(right).ok()) << right;
  }
  for (const char* wrong : {"", "localhost", "node-7", "127.0.1", "127.0.0.1:80", "[::1]", "0.0.0.0", "233.252.0.1",
                            "::", "ff02::1", "255.255.255.255", "fe80::1", "fe80::1%eth0"}) {
    const absl::Status status = CheckOwnAddress(wrong);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << wrong;
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::string("\"") + wrong + "\"")) << wrong;
  }
}

}  // namespace
}  // namespace stemma::worker
