#include "common/config/host_port.h"

#include <charconv>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"

namespace baton::config {
namespace {

constexpr size_t kMaxHostBytes = 253;  // RFC 1035 limit on a name
constexpr size_t kMaxAddresses = 1024;

absl::Status Invalid(std::string_view text, std::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat(
      "address \"", std::string(text), "\" ", std::string(problem), "; expected host:port"));
}

bool IsHostCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '-' || c == '_' || c == ':' || c == '%';
}

}  // namespace

std::string HostPort::ToString() const {
  const bool ipv6 = host.find(':') != std::string::npos;
  return absl::StrCat(ipv6 ? "[" : "", host, ipv6 ? "]:" : ":", port);
}

absl::StatusOr<HostPort> ParseHostPort(std::string_view text, bool allow_port_zero) {
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) {
    return Invalid(text, "has no port");
  }
  std::string_view host = text.substr(0, colon);
  const std::string_view port = text.substr(colon + 1);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return Invalid(text, "needs brackets around its IPv6 host");
  }
  if (host.empty() || host.size() > kMaxHostBytes) {
    return Invalid(text, "has no usable host");
  }
  for (const char c : host) {
    if (!IsHostCharacter(c)) {
      return Invalid(text, "has a character that no host name holds");
    }
  }
  HostPort result;
  result.host = std::string(host);
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), result.port);
  if (error != std::errc() || end != port.data() + port.size() || port.empty()) {
    return Invalid(text, "has a port that is not a number up to 65535");
  }
  if (result.port == 0 && !allow_port_zero) {
    return Invalid(text, "has port 0");
  }
  return result;
}

absl::StatusOr<std::vector<HostPort>> ParseHostPorts(std::string_view text) {
  std::vector<HostPort> addresses;
  while (!text.empty()) {
    const size_t comma = text.find(',');
    BATON_ASSIGN_OR_RETURN(HostPort address, ParseHostPort(text.substr(0, comma)));
    addresses.push_back(std::move(address));
    if (addresses.size() > kMaxAddresses) {
      return absl::InvalidArgumentError(absl::StrCat("more than ", kMaxAddresses, " addresses"));
    }
    if (comma == std::string_view::npos) {
      break;
    }
    text.remove_prefix(comma + 1);
    if (text.empty()) {
      return Invalid("", "is empty (a comma ends the list)");
    }
  }
  return addresses;
}

bool IsLoopback(std::string_view host) {
  return host == "localhost" || host == "::1" || host.substr(0, 4) == "127.";
}

}  // namespace baton::config
