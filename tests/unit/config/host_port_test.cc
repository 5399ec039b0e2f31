#include "common/config/host_port.h"

#include "gtest/gtest.h"

namespace baton::config {
namespace {

TEST(HostPortTest, ParsesNamesAndAddresses) {
  EXPECT_EQ(*ParseHostPort("localhost:50051"), (HostPort{"localhost", 50051}));
  EXPECT_EQ(*ParseHostPort("10.0.0.1:1"), (HostPort{"10.0.0.1", 1}));
  EXPECT_EQ(*ParseHostPort("[::1]:65535"), (HostPort{"::1", 65535}));
  EXPECT_EQ(ParseHostPort("[::1]:80")->ToString(), "[::1]:80");
  EXPECT_EQ(ParseHostPort("host:80")->ToString(), "host:80");
}

TEST(HostPortTest, PortZeroOnlyForListeners) {
  EXPECT_FALSE(ParseHostPort("localhost:0").ok());
  EXPECT_EQ(ParseHostPort("localhost:0", true)->port, 0);
}

TEST(HostPortTest, RefusesMalformedAddresses) {
  for (const char* text : {"",
                           "localhost",
                           ":80",
                           "localhost:",
                           "localhost:x",
                           "localhost:80x",
                           "localhost:65536",
                           "localhost:-1",
                           "::1:80",
                           "[]:80",
                           "a b:80",
                           "http://x:80"}) {
    EXPECT_EQ(ParseHostPort(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(HostPortTest, ParsesLists) {
  EXPECT_TRUE(ParseHostPorts("")->empty());
  EXPECT_EQ(ParseHostPorts("a:1,b:2")->size(), 2u);
  for (const char* text : {"a:1,", ",a:1", "a:1,,b:2", "a:1, b:2"}) {
    EXPECT_FALSE(ParseHostPorts(text).ok()) << text;
  }
}

TEST(HostPortTest, KnowsLoopback) {
  EXPECT_TRUE(IsLoopback("localhost") && IsLoopback("127.0.0.1") && IsLoopback("::1"));
  EXPECT_FALSE(IsLoopback("0.0.0.0") || IsLoopback("10.1.2.3") || IsLoopback("::"));
}

}  // namespace
}  // namespace baton::config
