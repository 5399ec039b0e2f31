#include "services/router/workers/discovery.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "common/base/status_macros.h"
#include "services/router/workers/dns_discovery.h"

namespace baton::router {
namespace {

constexpr std::string_view kDnsScheme = "dns:///";

class StaticDiscovery final : public Discovery {};

absl::Status CheckAddress(const std::string& address) {
  const size_t colon = address.rfind(':');
  int port = 0;
  if (colon == std::string::npos || colon == 0 ||
      !absl::SimpleAtoi(address.substr(colon + 1), &port) || port < 1 || port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("`", address, "` is not host:port with a port from 1 to 65535"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ParseAddressList(std::string_view list) {
  std::vector<std::string> addresses =
      absl::StrSplit(absl::string_view(list.data(), list.size()), ',', absl::SkipWhitespace());
  for (const std::string& address : addresses) {
    BATON_RETURN_IF_ERROR(CheckAddress(address));
  }
  std::ranges::sort(addresses);
  const auto repeated = std::ranges::unique(addresses);
  addresses.erase(repeated.begin(), repeated.end());
  return addresses;
}

absl::StatusOr<std::unique_ptr<Discovery>> StartDiscovery(std::string_view target,
                                                          Discovery::OnAddresses on_addresses,
                                                          absl::Duration dns_interval) {
  if (target.starts_with(kDnsScheme)) {
    const std::string name(target.substr(kDnsScheme.size()));
    BATON_RETURN_IF_ERROR(CheckAddress(name));
    return MakeDnsDiscovery(name, std::move(on_addresses), dns_interval);
  }
  BATON_ASSIGN_OR_RETURN(const std::vector<std::string> addresses, ParseAddressList(target));
  on_addresses(addresses);
  return std::make_unique<StaticDiscovery>();
}

}  // namespace baton::router
