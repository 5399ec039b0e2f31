// The sending half of one PushKv stream.
#pragma once

#include <atomic>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/client_callback.h"

#include "common/transport/chunk_cutter.h"
#include "common/transport/transport.h"
#include "proto/baton/worker/v1/kv_transfer.grpc.pb.h"

namespace baton::transport {

// Largest payload of a chunk, in bytes.
inline constexpr size_t kMaxChunkBytes = size_t{1} << 20;

// Sends the runs of one post with one write in flight and waits for the ack. Owns itself from Start
// until gRPC's OnDone; the source memory is read only inside Start and OnWriteDone, so nothing is
// read any more when `done` runs. Cancel is thread-safe.
class PushStream final
    : public grpc::ClientBidiReactor<worker::v1::KvChunk, worker::v1::KvChunkAck>,
      public std::enable_shared_from_this<PushStream> {
 public:
  using Done = std::function<void(Completion)>;

  // `done` is called once, last, from a gRPC thread.
  PushStream(PostParams params, Done done);

  void Start(worker::v1::KvTransfer::StubInterface::async_interface& stub);
  void Cancel();

  void OnWriteDone(bool ok) override;
  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

 private:
  void WriteNext();
  absl::Status Outcome(const grpc::Status& status) const;

  const PostParams params_;
  const Done done_;
  ChunkCutter cutter_;
  grpc::ClientContext context_;
  worker::v1::KvChunk chunk_;
  worker::v1::KvChunkAck ack_;
  bool acked_ = false;
  std::atomic<bool> cancelled_{false};
  std::shared_ptr<PushStream> self_;
};

}  // namespace baton::transport
