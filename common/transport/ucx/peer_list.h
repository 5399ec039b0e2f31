// Which addresses may connect.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace baton::transport::ucx {

// A list of IP networks; immutable. An IPv4 address within IPv6 (::ffff:a.b.c.d) counts as IPv4.
class PeerList {
 public:
  static constexpr size_t kMaxNetworks = 1024;

  // Addresses and CIDRs, comma-separated: "10.0.0.0/8,192.168.1.7,fd00::/8". An empty text admits
  // no one. kInvalidArgument names the part that is wrong, bits beyond a prefix included.
  static absl::StatusOr<PeerList> Parse(std::string_view text);

  bool Admits(const sockaddr_storage& address) const;

 private:
  struct Network {
    std::array<uint8_t, 16> address{};  // IPv4 as ::ffff:a.b.c.d
    int prefix = 0;                     // bits, of 128
  };
  std::vector<Network> networks_;
};

}  // namespace baton::transport::ucx
