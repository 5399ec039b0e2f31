// Transport over UCX: one-sided puts by RDMA, messages over every other carrier, as UCX selects.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "common/transport/threaded_transport.h"

namespace baton::transport {

struct UcxTransportOptions {
  // host:port that peers connect to (port 0: a free one); empty when it only sends.
  std::string listen{};
  // Host under which peers reach it; empty: that of `listen`.
  std::string advertise_host{};
  // Addresses and CIDRs that may connect, comma-separated. Over TCP, UCX writes where a peer says:
  // who may connect may write anywhere in this process.
  std::string allowed_peers = "127.0.0.0/8,::1";
  // Refuses connections over anything but RDMA.
  bool require_rdma = false;
  // Refuses to send over connections that carry fewer bytes per second; 0: does not measure.
  double bandwidth_floor = 0;
  // Memory for slots that peers put into: each peer has slots_per_peer * slot_bytes of it. Peers
  // without RDMA take none and may have as many bytes under way.
  int64_t arena_bytes = int64_t{256} << 20;
  uint32_t slot_bytes = uint32_t{1} << 20;
  uint16_t slots_per_peer = 8;
  int32_t max_open_posts = 1024;
  absl::Duration connect_timeout = absl::Seconds(5);
  // The connection of a peer that keeps a quarantined slot for so long is closed.
  absl::Duration quarantine_timeout = absl::Seconds(30);
  // Peers put over carriers that emulate puts too: for tests of puts on machines without RDMA. UCX
  // aborts the receiver when an emulated put meets the end of its connection.
  bool put_without_rdma = false;
};

struct UcxStats {
  int64_t arena_bytes = 0;  // memory of connected peers' slots, free ones included
  int64_t granted_slots = 0;
  // Of these: their transfer has ended here, and the sender may still put into them.
  int64_t quarantined_slots = 0;
  std::vector<std::string> carriers{};  // of connections that peers have made so far
};

// One thread makes progress. Puts take sources from where they lie, and what they brought is copied
// once, from the slot into the window; messages cost a copy more on each side (architecture.md
// section 7, adr/0014).
class UcxTransport : public ThreadedTransport {
 public:
  // Whether this build has UCX.
  static bool available();
  // kInvalidArgument names the option, kUnimplemented without UCX.
  static absl::StatusOr<std::unique_ptr<UcxTransport>> Make(const UcxTransportOptions& options);

  std::string_view name() const override { return "ucx"; }
  virtual UcxStats stats() const = 0;

 protected:
  using ThreadedTransport::ThreadedTransport;
};

}  // namespace baton::transport
