#include "common/transport/ucx/peer_list.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace baton::transport::ucx {
namespace {

using Bytes = std::array<uint8_t, 16>;

constexpr int kMappedBits = 96;  // of ::ffff:0:0/96, where the IPv4 addresses are

Bytes Mapped(const in_addr& address) {
  Bytes bytes{};
  bytes[10] = bytes[11] = 0xff;
  std::memcpy(&bytes[12], &address, sizeof(address));
  return bytes;
}

std::optional<Bytes> BytesOf(const sockaddr_storage& address) {
  Bytes bytes{};
  if (address.ss_family == AF_INET) {
    sockaddr_in v4{};
    std::memcpy(&v4, &address, sizeof(v4));
    return Mapped(v4.sin_addr);
  }
  if (address.ss_family == AF_INET6) {
    sockaddr_in6 v6{};
    std::memcpy(&v6, &address, sizeof(v6));
    std::memcpy(bytes.data(), &v6.sin6_addr, bytes.size());
    return bytes;
  }
  return std::nullopt;
}

bool SamePrefix(const Bytes& a, const Bytes& b, int bits) {
  for (int bit = 0; bit < bits; ++bit) {
    const auto byte = static_cast<size_t>(bit / 8);
    if (((a[byte] ^ b[byte]) >> (7 - bit % 8) & 1) != 0) {
      return false;
    }
  }
  return true;
}

bool ZeroAfter(const Bytes& bytes, int bits) {
  for (int bit = bits; bit < 128; ++bit) {
    if ((bytes[static_cast<size_t>(bit / 8)] >> (7 - bit % 8) & 1) != 0) {
      return false;
    }
  }
  return true;
}

}  // namespace

absl::StatusOr<PeerList> PeerList::Parse(std::string_view text) {
  PeerList list;
  if (text.empty()) {
    return list;
  }
  const std::vector<std::string> parts =
      absl::StrSplit(absl::string_view(text.data(), text.size()), ',');
  if (parts.size() > kMaxNetworks) {
    return absl::InvalidArgumentError(absl::StrCat("more than ", kMaxNetworks, " networks"));
  }
  for (const std::string& part : parts) {
    const std::pair<std::string, std::string> halves =
        absl::StrSplit(part, absl::MaxSplits('/', 1));
    const bool has_prefix = part.find('/') != std::string::npos;
    Network network;
    in_addr v4{};
    int first_bit = 0;
    if (inet_pton(AF_INET, halves.first.c_str(), &v4) == 1) {
      network.address = Mapped(v4);
      first_bit = kMappedBits;
    } else if (inet_pton(AF_INET6, halves.first.c_str(), network.address.data()) != 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", part, "\" is neither an IP address nor a network like 10.0.0.0/8"));
    }
    int prefix = 128 - first_bit;
    if (has_prefix &&
        (!absl::SimpleAtoi(halves.second, &prefix) || prefix < 0 || prefix > 128 - first_bit)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the prefix of \"", part, "\" must be a number from 0 to ", 128 - first_bit));
    }
    network.prefix = first_bit + prefix;
    if (!ZeroAfter(network.address, network.prefix)) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", part, "\" has address bits beyond its prefix of ", prefix, " bits"));
    }
    list.networks_.push_back(network);
  }
  return list;
}

bool PeerList::Admits(const sockaddr_storage& address) const {
  const std::optional<Bytes> bytes = BytesOf(address);
  return bytes.has_value() &&
         std::any_of(networks_.begin(), networks_.end(), [&](const Network& network) {
           return SamePrefix(*bytes, network.address, network.prefix);
         });
}

}  // namespace baton::transport::ucx
