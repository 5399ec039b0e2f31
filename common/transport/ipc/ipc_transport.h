// Transport between workers of one machine: the receiver reads the sender's memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "common/transport/threaded_transport.h"
#include "kernels/core/landing_memory.h"

namespace baton::transport {

struct IpcTransportOptions {
  bool listens = false;  // whether peers connect to it
  int32_t max_open_posts = 1024;
  absl::Duration connect_timeout = absl::Seconds(5);
  // By which a receiver maps memory of other processes' devices, and copies from there into windows
  // of this memory; null: it takes bytes of the host only. Outlives the transport.
  kernels::LandingMemory* device = nullptr;
};

// A sender says where bytes lie in shared memory, of the host or of a device, which the receiver
// has mapped and copies from into its windows; bytes of the host that lie elsewhere go through a
// local socket (adr/0017). Peers are processes of the same user in the same network namespace.
class IpcTransport : public ThreadedTransport {
 public:
  // kUnavailable when the system has no local sockets for it.
  static absl::StatusOr<std::unique_ptr<IpcTransport>> Make(const IpcTransportOptions& options);

  std::string_view name() const override { return "ipc"; }

 protected:
  using ThreadedTransport::ThreadedTransport;
};

}  // namespace baton::transport
