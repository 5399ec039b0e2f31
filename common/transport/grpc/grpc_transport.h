// Transport over KvTransfer.PushKv: works everywhere, TLS included.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"

#include "common/transport/completion_queue.h"
#include "common/transport/transport.h"
#include "common/transport/window_table.h"
#include "kernels/core/landing_memory.h"
#include "proto/baton/worker/v1/kv_transfer.grpc.pb.h"

namespace baton::transport {

class PushStream;

struct GrpcTransportOptions {
  // Of the channels to peers; never null.
  std::shared_ptr<grpc::ChannelCredentials> credentials{};
  // Name that a peer's certificate must carry; empty: the host dialled.
  std::string server_name{};
  // host:port under which peers reach this worker's KvTransfer service; empty when it only sends.
  std::string address{};
  int32_t max_open_posts = 1024;
  absl::Duration connect_timeout = absl::Seconds(5);
};

// A post is one PushKv stream: one chunk of at most 1 MiB in flight, one ack at its end. Chunks are
// copied into the window as they arrive; a chunk whose transfer has not been announced yet waits,
// and gRPC's flow control holds its sender back. Connections have an HTTP/2 connection of their
// own.
class GrpcTransport : public Transport {
 public:
  explicit GrpcTransport(GrpcTransportOptions options);
  // Cancels open posts and waits for their streams. Shut the gRPC server down first.
  ~GrpcTransport() override;

  std::string_view name() const override { return "grpc"; }
  std::string connection_data() const override;
  // For a server whose port is known only after it was started; before the first Register.
  void set_address(std::string address);

  // Handles one PushKv call of the service that receives for this transport. The reactor owns
  // itself and may outlive the transport.
  grpc::ServerBidiReactor<worker::v1::KvChunk, worker::v1::KvChunkAck>* NewPushKvReactor(
      grpc::CallbackServerContext* context);

  absl::StatusOr<std::unique_ptr<Window>> Register(std::vector<std::span<std::byte>> extents,
                                                   kernels::LandingMemory& memory) override;
  // `connection_data` is the peer's address. kUnavailable when it can't be reached in time.
  absl::StatusOr<std::shared_ptr<Connection>> Connect(std::string_view connection_data) override;
  absl::Status Post(const std::shared_ptr<Connection>& connection, PostParams params) override;
  void CancelPost(uint64_t tag) override;
  absl::Status Expect(const ExpectParams& params) override;
  std::vector<Completion> Poll(absl::Time deadline) override;
  void Release() override;

 private:
  void OnStreamDone(uint64_t tag, Completion completion);

  const GrpcTransportOptions options_;
  const std::shared_ptr<CompletionQueue> completions_;
  const std::shared_ptr<WindowTable> windows_;

  mutable absl::Mutex mutex_;
  std::string address_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, std::shared_ptr<PushStream>> open_posts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::transport
