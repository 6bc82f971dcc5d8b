#include "common/base/address.h"

#include <string>

#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace stemma {
namespace {

using testing::Invalid;

struct Good {
  const char* text;
  const char* host;
  int port;
  bool loopback;
};

TEST(AddressTest, LiteralsAndNamesAreReadAndLoopbackIsDecidedByTheLiteral) {
  for (const Good& good :
       {Good{"127.0.0.1:7070", "127.0.0.1", 7070, true}, Good{"127.255.3.4:1", "127.255.3.4", 1, true},
        Good{"[::1]:65535", "::1", 65535, true}, Good{"localhost:0", "localhost", 0, true},
        Good{"LocalHost:7", "LocalHost", 7, true}, Good{"0.0.0.0:7070", "0.0.0.0", 7070, false},
        Good{"[::]:7070", "::", 7070, false}, Good{"10.0.0.1:7070", "10.0.0.1", 7070, false},
        Good{"127.evil.example:7070", "127.evil.example", 7070, false},
        Good{"localhost.evil.example:7", "localhost.evil.example", 7, false},
        Good{"[::ffff:127.0.0.1]:7", "::ffff:127.0.0.1", 7, false},
        Good{"gpu-1.cluster.local:00080", "gpu-1.cluster.local", 80, false}}) {
    const absl::StatusOr<HostPort> read = ParseListenAddress(good.text);
    ASSERT_TRUE(read.ok()) << good.text << ": " << read.status();
    EXPECT_EQ(read->host, good.host);
    EXPECT_EQ(read->port, good.port);
    EXPECT_EQ(read->loopback, good.loopback) << good.text;
    const absl::StatusOr<HostPort> again = ParseListenAddress(read->Text());
    ASSERT_TRUE(again.ok()) << read->Text();
    EXPECT_EQ(again->host, read->host);
    EXPECT_EQ(again->port, read->port);
  }
}

TEST(AddressTest, WhatIsNoAddressIsRefusedWithWhatToWrite) {
  struct Bad {
    const char* text;
    const char* why;
  };
  for (const Bad& bad : {Bad{"", "is empty"},
                         Bad{"127.0.0.1", "has no port"},
                         Bad{"host", "has no port"},
                         Bad{"127.0.0.1:", "has no port from 0 to 65535"},
                         Bad{"127.0.0.1:99999", "has no port from 0 to 65535"},
                         Bad{"127.0.0.1:65536", "has no port from 0 to 65535"},
                         Bad{"127.0.0.1:-1", "has no port from 0 to 65535"},
                         Bad{"127.0.0.1:+1", "has no port from 0 to 65535"},
                         Bad{"127.0.0.1: 1", "has no port from 0 to 65535"},
                         Bad{"127.0.0.1:0x10", "has no port from 0 to 65535"},
                         Bad{"127.0.0.1:7070/", "has no port from 0 to 65535"},
                         Bad{"127.0.0.1:000000", "has no port from 0 to 65535"},
                         Bad{":7070", "has no host"},
                         Bad{"[]:7070", "has no host"},
                         Bad{"::1", "needs brackets"},
                         Bad{"::1:7070", "needs brackets"},
                         Bad{"[::1]", "has no port"},
                         Bad{"[::1", "has no port"},
                         Bad{"[::1]7070", "has no port"},
                         Bad{"[127.0.0.1]:7070", "no IPv6 address"},
                         Bad{"[::1%lo]:7070", "no IPv6 address"},
                         Bad{"127.1:7070", "names no host"},
                         Bad{"192.0.2.256:7070", "names no host"},
                         Bad{"a b:7070", "names no host"},
                         Bad{"a..b:7070", "names no host"},
                         Bad{"-a:7070", "names no host"},
                         Bad{"*:7070", "names no host"},
                         Bad{"a_b:7070", "names no host"},
                         Bad{"http://a:7070/x", "is a URL: give it without http://, as a:7070"},
                         Bad{"unix:/run/stemma", "not supported"},
                         Bad{"unix-abstract:stemma", "not supported"}}) {
    EXPECT_THAT(ParseListenAddress(bad.text).status(), Invalid(bad.why)) << bad.text;
  }
  EXPECT_THAT(ParseListenAddress(std::string(254, 'a') + ":1").status(), Invalid("names no host"));
  EXPECT_THAT(ParseListenAddress(std::string("a\0b:1", 5)).status(), Invalid("names no host"));
}

TEST(AddressTest, NobodyConnectsToPortZero) {
  EXPECT_THAT(ParseDialAddress("127.0.0.1:0").status(), Invalid("port 0"));
  EXPECT_TRUE(ParseDialAddress("127.0.0.1:1").ok());
}

}  // namespace
}  // namespace stemma
