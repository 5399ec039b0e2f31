// The sender's end of a Link stream.
#pragma once

#include <memory>

#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/client_callback.h"
#include "grpcpp/support/status.h"

#include "common/base/live_counter.h"
#include "common/transport/nccl/pipe.h"
#include "common/transport/nccl/pipe_reactor.h"
#include "proto/baton/worker/v1/kv_link.pb.h"
#include "proto/baton/worker/v1/kv_transfer.grpc.pb.h"

namespace baton::transport::nccl {

class ClientPipe final
    : public PipeReactor<
          grpc::ClientBidiReactor<worker::v1::LinkMessage, worker::v1::LinkMessage>> {
 public:
  // Starts the call. `live` counts it until gRPC has let go of it: the last holder of the channel
  // may not be a thread of gRPC's callbacks.
  static std::shared_ptr<ClientPipe> Open(std::shared_ptr<grpc::Channel> channel,
                                          LiveCounter& live,
                                          OnMessage on_message);

  ClientPipe(std::shared_ptr<grpc::Channel> channel, LiveCounter& live, OnMessage on_message);
  void OnDone(const grpc::Status& status) override;

 private:
  void Break() override;
  void End() override;

  const LiveCounter::Count counted_;  // first, so that it goes last
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<worker::v1::KvTransfer::Stub> stub_;
  grpc::ClientContext context_;
};

}  // namespace baton::transport::nccl
