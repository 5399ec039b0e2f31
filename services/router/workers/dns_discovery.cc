#include "services/router/workers/dns_discovery.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <optional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "spdlog/spdlog.h"

namespace baton::router {
namespace {

// More addresses than a deployment has workers are not believed.
constexpr size_t kMaxAddresses = 1024;

std::string NumericAddress(const addrinfo& info, const std::string& port) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (info.ai_family == AF_INET) {
    const auto* address = reinterpret_cast<const sockaddr_in*>(info.ai_addr);
    inet_ntop(AF_INET, &address->sin_addr, text.data(), text.size());
    return absl::StrCat(text.data(), ":", port);
  }
  const auto* address = reinterpret_cast<const sockaddr_in6*>(info.ai_addr);
  inet_ntop(AF_INET6, &address->sin6_addr, text.data(), text.size());
  return absl::StrCat("[", text.data(), "]:", port);
}

// Sorted host:port of every address of `host`; nullopt when the look-up failed.
std::optional<std::vector<std::string>> Resolve(const std::string& host, const std::string& port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (error == EAI_NONAME) {
    return std::vector<std::string>{};  // a headless service without ready workers
  }
  if (error != 0) {
    spdlog::warn("DNS look-up of {} failed: {}", host, gai_strerror(error));
    return std::nullopt;
  }
  std::vector<std::string> addresses;
  for (const addrinfo* info = found; info != nullptr && addresses.size() < kMaxAddresses;
       info = info->ai_next) {
    if (info->ai_family == AF_INET || info->ai_family == AF_INET6) {
      addresses.push_back(NumericAddress(*info, port));
    }
  }
  freeaddrinfo(found);
  std::ranges::sort(addresses);
  const auto repeated = std::ranges::unique(addresses);
  addresses.erase(repeated.begin(), repeated.end());
  return addresses;
}

class DnsDiscovery final : public Discovery {
 public:
  DnsDiscovery(const std::string& name, OnAddresses on_addresses, absl::Duration interval)
      : host_(name.substr(0, name.rfind(':'))),
        port_(name.substr(name.rfind(':') + 1)),
        on_addresses_(std::move(on_addresses)),
        interval_(interval),
        thread_([this] { Run(); }) {}

  ~DnsDiscovery() override {
    {
      absl::MutexLock lock(&mutex_);
      stopping_ = true;
    }
    thread_.join();
  }

 private:
  void Run() {
    std::vector<std::string> last;
    do {
      std::optional<std::vector<std::string>> addresses = Resolve(host_, port_);
      if (addresses.has_value() && *addresses != last) {
        last = *std::move(addresses);
        on_addresses_(last);
      }
    } while (!StoppingWithin(interval_));
  }

  bool StoppingWithin(absl::Duration time) {
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&stopping_), time);
  }

  const std::string host_;
  const std::string port_;
  const OnAddresses on_addresses_;
  const absl::Duration interval_;
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<Discovery> MakeDnsDiscovery(const std::string& name,
                                            Discovery::OnAddresses on_addresses,
                                            absl::Duration interval) {
  return std::make_unique<DnsDiscovery>(name, std::move(on_addresses), interval);
}

}  // namespace baton::router
