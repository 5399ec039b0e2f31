// Transport between devices by NCCL, on one machine or over the network.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"

#include "common/transport/nccl/progress.h"
#include "common/transport/threaded_transport.h"
#include "common/transport/transport.h"
#include "kernels/core/device_link.h"
#include "kernels/core/landing_memory.h"
#include "proto/baton/worker/v1/kv_link.pb.h"

namespace baton::transport {

struct NcclTransportOptions {
  // Of the worker's device; outlives the transport.
  kernels::DeviceLinks* links = nullptr;
  // Of the same device, of which windows are; null: it only sends. Outlives the transport.
  kernels::LandingMemory* memory = nullptr;
  // Of the channels to peers; null: it only receives.
  std::shared_ptr<grpc::ChannelCredentials> credentials{};
  // Name that a peer's certificate must carry; empty: the host dialled.
  std::string server_name{};
  kernels::LinkSizes sizes{};  // of the links that it opens
  // Thread blocks that transfers may hold at once of this GPU (block_budget.h): Hopper has 132
  // multiprocessors.
  int32_t block_budget = 128;
  int32_t max_open_posts = 1024;
  // Peers that may be connected to it: each takes slots and a communicator's memory, on both ends.
  size_t max_inbound_peers = 32;
  // For so long a peer has sent nothing before another one may take its place. It connects anew
  // when it has something to send, which takes half a second.
  absl::Duration idle_before_close = absl::Seconds(30);
  absl::Duration connect_timeout = absl::Seconds(20);
};

// A connection is a communicator of two ranks beside a KvTransfer.Link stream, on which both ends
// agree on every transfer before they launch it (performance.md 2: nothing waits on a device for a
// peer that is not there). Bytes of the device in blocks that FindShared knows go that way, those
// of the host over the stream. One thread of the transport makes all calls of NCCL (adr/0019).
class NcclTransport final : public ThreadedTransport {
 public:
  static absl::StatusOr<std::unique_ptr<NcclTransport>> Make(const NcclTransportOptions& options);
  // Shut the gRPC server down first.
  ~NcclTransport() override;

  std::string_view name() const override { return "nccl"; }
  // The worker's address; empty before set_address, or when it only sends.
  std::string connection_data() const override;
  void set_address(std::string address);
  // `connection_data` is the peer's address. Returns once bytes can go, on both ends.
  absl::StatusOr<std::shared_ptr<Connection>> Connect(std::string_view connection_data) override;

  // Handles one Link call of the service that receives for this transport. The reactor owns itself.
  grpc::ServerBidiReactor<worker::v1::LinkMessage, worker::v1::LinkMessage>* NewLinkReactor(
      grpc::CallbackServerContext* context);
  // From now on peers' streams end as soon as no window is there.
  void Drain();

 private:
  explicit NcclTransport(const NcclTransportOptions& options);

  const NcclTransportOptions options_;
  nccl::Progress progress_;
  mutable absl::Mutex mutex_;
  std::string address_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::transport
