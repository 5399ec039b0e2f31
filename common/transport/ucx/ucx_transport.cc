#include "common/transport/ucx/ucx_transport.h"

#include <memory>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "common/config/host_port.h"
#include "common/transport/threaded_transport.h"
#include "common/transport/transport.h"
#include "common/transport/ucx/peer_list.h"
#include "common/transport/ucx/progress.h"
#include "common/transport/ucx/ucx_worker.h"

namespace baton::transport {
namespace {

class Transported : public UcxTransport {
 public:
  explicit Transported(const UcxTransportOptions& options)
      : UcxTransport(options.max_open_posts),
        options_(options),
        progress_(options, inbox(), windows(), OnSent()) {}
  ~Transported() override { StopThread(); }
  absl::Status Bring();

  std::string connection_data() const override { return connection_data_; }
  absl::StatusOr<std::shared_ptr<Connection>> Connect(std::string_view connection_data) override;
  UcxStats stats() const override { return progress_.stats(); }

 private:
  const UcxTransportOptions options_;
  std::string connection_data_;
  ucx::Progress progress_;
};

absl::Status Transported::Bring() {
  BATON_RETURN_IF_ERROR(inbox()->Open());
  BATON_ASSIGN_OR_RETURN(const uint16_t port, progress_.Bring());
  if (port != 0) {
    config::HostPort address{.host = options_.advertise_host, .port = port};
    if (address.host.empty()) {
      BATON_ASSIGN_OR_RETURN(const config::HostPort listen,
                             config::ParseHostPort(options_.listen, /*allow_port_zero=*/true));
      address.host = listen.host;
    }
    connection_data_ = address.ToString();
  }
  StartThread(progress_);
  return absl::OkStatus();
}

// The call is answered by connect_timeout.
absl::StatusOr<std::shared_ptr<Connection>> Transported::Connect(std::string_view connection_data) {
  const std::string address(connection_data);
  BATON_ASSIGN_OR_RETURN(const sockaddr_storage peer,
                         ucx::Resolve(address, /*allow_port_zero=*/false));
  return AwaitConnect(address, [this, peer](const std::shared_ptr<ConnectCall>& call) {
    progress_.Connect(call, peer);
  });
}

absl::Status CheckOptions(const UcxTransportOptions& options) {
  constexpr uint32_t kMinSlotBytes = 4096;
  constexpr uint32_t kMaxSlotBytes = uint32_t{1} << 28;
  if (options.slot_bytes < kMinSlotBytes || options.slot_bytes > kMaxSlotBytes ||
      options.slots_per_peer == 0) {
    return absl::InvalidArgumentError(
        "landing slots must have 4 KiB to 256 MiB, at least one per peer");
  }
  if (options.arena_bytes < int64_t{options.slot_bytes} * options.slots_per_peer) {
    return absl::InvalidArgumentError(
        absl::StrCat("an arena of ",
                     options.arena_bytes,
                     " bytes has no room for the landing slots of one peer, ",
                     int64_t{options.slot_bytes} * options.slots_per_peer,
                     " bytes"));
  }
  constexpr double kMinFloor = 1e6;
  constexpr double kMaxFloor = 1e13;
  if (options.bandwidth_floor != 0 &&
      !(options.bandwidth_floor >= kMinFloor && options.bandwidth_floor <= kMaxFloor)) {
    return absl::InvalidArgumentError("a bandwidth floor must be 0 or 1 MB/s to 10 TB/s");
  }
  return ucx::PeerList::Parse(options.allowed_peers).status();
}

}  // namespace

bool UcxTransport::available() { return true; }

absl::StatusOr<std::unique_ptr<UcxTransport>> UcxTransport::Make(
    const UcxTransportOptions& options) {
  BATON_RETURN_IF_ERROR(CheckOptions(options));
  auto transport = std::make_unique<Transported>(options);
  BATON_RETURN_IF_ERROR(transport->Bring());
  return transport;
}

}  // namespace baton::transport
