// Where the workers are: a fixed list or a DNS name.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace baton::router {

// Keeps a list of host:port up to date until it is destroyed.
class Discovery {
 public:
  // Called with every address, without duplicates, whenever the list changed, from any thread but
  // not from two at once. Must not block for long.
  using OnAddresses = std::function<void(const std::vector<std::string>&)>;

  virtual ~Discovery() = default;
};

// How often a DNS name is asked again.
inline constexpr absl::Duration kDnsInterval = absl::Seconds(5);

// Reads a --prefill or --decode flag: "host:port[,host:port...]" is a fixed list, reported before
// this returns; "dns:///name:port" reports all addresses of the name, now and every
// `dns_interval`. An empty `target` reports nothing. kInvalidArgument says what is wrong.
absl::StatusOr<std::unique_ptr<Discovery>> StartDiscovery(std::string_view target,
                                                          Discovery::OnAddresses on_addresses,
                                                          absl::Duration dns_interval);

// The addresses of a fixed list. kInvalidArgument names one that is not host:port.
absl::StatusOr<std::vector<std::string>> ParseAddressList(std::string_view list);

}  // namespace baton::router
