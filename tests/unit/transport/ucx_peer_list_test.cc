#include <arpa/inet.h>
#include <netinet/in.h>

#include <cstring>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/transport/ucx/peer_list.h"

namespace baton::transport::ucx {
namespace {

sockaddr_storage Address(const std::string& text) {
  sockaddr_storage result{};
  sockaddr_in v4{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {}, .sin_zero = {}};
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  if (inet_pton(AF_INET, text.c_str(), &v4.sin_addr) == 1) {
    std::memcpy(&result, &v4, sizeof(v4));
  } else {
    EXPECT_EQ(inet_pton(AF_INET6, text.c_str(), &v6.sin6_addr), 1) << text;
    std::memcpy(&result, &v6, sizeof(v6));
  }
  return result;
}

bool Admits(const std::string& list, const std::string& address) {
  const auto parsed = PeerList::Parse(list);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return parsed.ok() && parsed->Admits(Address(address));
}

TEST(UcxPeerListTest, AnEmptyListAdmitsNoOne) {
  EXPECT_FALSE(Admits("", "127.0.0.1"));
  EXPECT_FALSE(Admits("", "::1"));
}

TEST(UcxPeerListTest, AnAddressAdmitsItselfAlone) {
  EXPECT_TRUE(Admits("192.168.1.7", "192.168.1.7"));
  EXPECT_FALSE(Admits("192.168.1.7", "192.168.1.6"));
  EXPECT_TRUE(Admits("fd00::1", "fd00::1"));
  EXPECT_FALSE(Admits("fd00::1", "fd00::2"));
}

TEST(UcxPeerListTest, NetworksAdmitWhatSharesTheirPrefix) {
  EXPECT_TRUE(Admits("10.0.0.0/8,172.16.0.0/12", "10.255.1.2"));
  EXPECT_TRUE(Admits("10.0.0.0/8,172.16.0.0/12", "172.31.0.1"));
  EXPECT_FALSE(Admits("10.0.0.0/8,172.16.0.0/12", "172.32.0.1"));
  EXPECT_TRUE(Admits("fd00::/8", "fdff::1"));
  EXPECT_FALSE(Admits("fd00::/8", "fe00::1"));
  EXPECT_TRUE(Admits("0.0.0.0/0", "8.8.8.8"));
  EXPECT_FALSE(Admits("0.0.0.0/0", "fd00::1"));
}

TEST(UcxPeerListTest, IPv4WithinIPv6CountsAsIPv4) {
  EXPECT_TRUE(Admits("127.0.0.0/8", "::ffff:127.0.0.1"));
  EXPECT_FALSE(Admits("127.0.0.0/8", "::ffff:10.0.0.1"));
}

TEST(UcxPeerListTest, OtherFamiliesAreNotAdmitted) {
  sockaddr_storage local{};
  local.ss_family = AF_UNIX;
  EXPECT_FALSE(PeerList::Parse("0.0.0.0/0,::/0")->Admits(local));
}

TEST(UcxPeerListTest, MalformedListsNameThePart) {
  for (const std::string part : {"10.0.0",
                                 "host",
                                 "10.0.0.0/33",
                                 "10.0.0.0/-1",
                                 "10.0.0.0/",
                                 "10.0.0.0/8/8",
                                 "10.0.0.1/8",
                                 "fd00::/129",
                                 " 10.0.0.1"}) {
    const auto list = PeerList::Parse("127.0.0.1," + part);
    EXPECT_EQ(list.status().code(), absl::StatusCode::kInvalidArgument) << part;
    EXPECT_THAT(std::string(list.status().message()), testing::HasSubstr(part));
  }
  EXPECT_FALSE(PeerList::Parse(",").ok());
}

}  // namespace
}  // namespace baton::transport::ucx
