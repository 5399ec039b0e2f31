// Addresses as flags carry them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace baton::config {

struct HostPort {
  std::string host;  // without the brackets of an IPv6 address
  uint16_t port = 0;

  // "host:port", with brackets around an IPv6 address: what gRPC and flags take.
  std::string ToString() const;
  bool operator==(const HostPort&) const = default;
};

// Parses "host:port" or "[ipv6]:port". Port 0 (the system chooses) is accepted for listeners only
// when `allow_port_zero`. kInvalidArgument says which part is wrong.
absl::StatusOr<HostPort> ParseHostPort(std::string_view text, bool allow_port_zero = false);

// Parses a comma-separated list, at most 1024 addresses, none empty. An empty text is an empty
// list.
absl::StatusOr<std::vector<HostPort>> ParseHostPorts(std::string_view text);

// True for "localhost", 127.0.0.0/8 and "::1": addresses that only this machine reaches.
bool IsLoopback(std::string_view host);

}  // namespace baton::config
