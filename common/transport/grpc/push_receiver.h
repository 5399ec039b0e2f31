// The receiving half of one PushKv stream.
#pragma once

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/support/server_callback.h"

#include "common/transport/inbound_window.h"
#include "common/transport/window_table.h"
#include "proto/baton/worker/v1/kv_transfer.pb.h"

namespace baton::transport {

// Reads chunks one at a time and writes them into the window in place. At any moment one party may
// act on the stream: gRPC's next OnReadDone, or, while the stream is parked because its transfer
// has not been announced, whoever un-parks it first (the announcement, the withdrawal, or
// OnCancel). So no operation is started twice or after the end. Owns itself until OnDone.
class PushReceiver final
    : public grpc::ServerBidiReactor<worker::v1::KvChunk, worker::v1::KvChunkAck>,
      public std::enable_shared_from_this<PushReceiver> {
 public:
  explicit PushReceiver(std::shared_ptr<WindowTable> windows);
  // Called once, before the reactor is handed to gRPC.
  void Start();

  void OnReadDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  void TakeFirstChunk();
  // Writes the chunk that was read, then reads on or ends.
  void TakeChunk();
  absl::Status WriteChunk();
  bool Unpark() ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends the stream with an ack; the last thing that the acting party does.
  void End(const absl::Status& status);

  const std::shared_ptr<WindowTable> windows_;
  std::shared_ptr<InboundWindow> window_;  // null until the first chunk
  uint64_t transfer_id_ = 0;
  worker::v1::KvChunk chunk_;
  worker::v1::KvChunkAck ack_;
  std::shared_ptr<PushReceiver> self_;

  absl::Mutex mutex_;
  bool parked_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace baton::transport
