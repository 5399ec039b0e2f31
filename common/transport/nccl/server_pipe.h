// The receiver's end of a Link stream.
#pragma once

#include <memory>

#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"

#include "common/transport/nccl/pipe.h"
#include "common/transport/nccl/pipe_reactor.h"
#include "proto/baton/worker/v1/kv_link.pb.h"

namespace baton::transport::nccl {

class ServerPipe final
    : public PipeReactor<
          grpc::ServerBidiReactor<worker::v1::LinkMessage, worker::v1::LinkMessage>> {
 public:
  static std::shared_ptr<ServerPipe> Open(grpc::CallbackServerContext* context,
                                          OnMessage on_message);

  ServerPipe(grpc::CallbackServerContext* context, OnMessage on_message);
  void OnDone() override;

 private:
  void Break() override;
  void End() override;

  grpc::CallbackServerContext* const context_;  // there until OnDone
};

}  // namespace baton::transport::nccl
