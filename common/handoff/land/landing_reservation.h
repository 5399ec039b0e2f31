// Where one reservation's KV lands.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "common/engine/request.h"
#include "common/handoff/land/segment_ledger.h"
#include "common/kv/manifest/layout.h"
#include "common/transport/transport.h"
#include "proto/baton/worker/v1/decode.pb.h"

namespace baton::handoff {

class TransferSession;

// The granted pages, their windows (one per transport) and the attempt that may fill them. After
// Close nothing reads or writes the pages from here. Thread-safe.
class LandingReservation {
 public:
  LandingReservation(const engine::ReservationGrant& grant,
                     const kv::v1::KvLayout& layout,
                     const kv::WindowGeometry& geometry);

  // Registers the pages with every transport; the endpoints for `Reserved`. Called once, first.
  absl::StatusOr<std::vector<worker::v1::TransportEndpoint>> RegisterWindows(
      const std::vector<transport::Transport*>& transports);

  uint64_t id() const { return grant_.reservation_id; }
  uint64_t epoch() const { return grant_.epoch; }
  const kv::v1::KvLayout& layout() const { return layout_; }
  const kv::WindowGeometry& geometry() const { return geometry_; }
  bool has_transport(std::string_view name) const;

  // kFailedPrecondition when a newer attempt has begun, kAlreadyExists when this one has.
  absl::Status CheckAttempt(uint32_t attempt);
  // `session` is the newest attempt from now on, if CheckAttempt allows it: ends the session of the
  // one before and then gives up its transfers.
  absl::Status Adopt(const std::shared_ptr<TransferSession>& session, uint32_t attempt);
  // Announces a segment of the attempt on the transport that carries it. After Close its reason.
  absl::Status Expect(std::string_view transport,
                      uint64_t transfer_id,
                      uint64_t tag,
                      std::vector<transport::ReceiveRun> runs,
                      transport::Checksum checksum);
  // Pages of each section of the window that a commit with this format state has sent.
  // kInvalidArgument when the state can't be of this prompt, after Close its reason.
  absl::StatusOr<std::vector<int32_t>> SentPages(std::string_view kv_state);
  // Withdraws the windows; waits for a write that is running. `reason` (not OK) is what later calls
  // get. Returns the newest session, which the caller ends.
  std::shared_ptr<TransferSession> Close(const absl::Status& reason);

 private:
  struct RegisteredWindow {
    transport::Transport* transport = nullptr;
    std::unique_ptr<transport::Window> window;
  };

  const engine::ReservationGrant grant_;
  const kv::v1::KvLayout layout_;
  const kv::WindowGeometry geometry_;
  std::vector<std::string> transport_names_;  // fixed after RegisterWindows

  absl::Status CheckNewer(uint32_t attempt) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Mutex mutex_;
  std::vector<RegisteredWindow> windows_ ABSL_GUARDED_BY(mutex_);
  uint32_t newest_attempt_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status end_ ABSL_GUARDED_BY(mutex_);  // not OK: closed
  std::weak_ptr<TransferSession> session_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::handoff
