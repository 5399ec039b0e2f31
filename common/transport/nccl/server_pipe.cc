#include "common/transport/nccl/server_pipe.h"

#include <memory>
#include <utility>

#include "grpcpp/server_context.h"
#include "grpcpp/support/status.h"

#include "common/transport/nccl/pipe_reactor.h"

namespace baton::transport::nccl {

std::shared_ptr<ServerPipe> ServerPipe::Open(grpc::CallbackServerContext* context,
                                             OnMessage on_message) {
  auto pipe = std::make_shared<ServerPipe>(context, std::move(on_message));
  pipe->Hold();
  return pipe;
}

ServerPipe::ServerPipe(grpc::CallbackServerContext* context, OnMessage on_message)
    : PipeReactor(std::move(on_message)), context_(context) {}

void ServerPipe::Break() { context_->TryCancel(); }

void ServerPipe::End() { Finish(grpc::Status::OK); }

void ServerPipe::OnDone() { Release(); }

}  // namespace baton::transport::nccl
