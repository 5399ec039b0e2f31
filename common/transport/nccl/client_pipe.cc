#include "common/transport/nccl/client_pipe.h"

#include <memory>
#include <utility>

#include "grpcpp/channel.h"
#include "grpcpp/support/status.h"

#include "common/base/live_counter.h"
#include "common/transport/nccl/pipe_reactor.h"
#include "proto/baton/worker/v1/kv_transfer.grpc.pb.h"

namespace baton::transport::nccl {

std::shared_ptr<ClientPipe> ClientPipe::Open(std::shared_ptr<grpc::Channel> channel,
                                             LiveCounter& live,
                                             OnMessage on_message) {
  auto pipe = std::make_shared<ClientPipe>(std::move(channel), live, std::move(on_message));
  pipe->Hold();
  pipe->stub_->async()->Link(&pipe->context_, pipe.get());
  // Operations are started from outside of reactions until End.
  pipe->AddHold();
  pipe->StartCall();
  return pipe;
}

ClientPipe::ClientPipe(std::shared_ptr<grpc::Channel> channel,
                       LiveCounter& live,
                       OnMessage on_message)
    : PipeReactor(std::move(on_message)),
      counted_(&live),
      channel_(std::move(channel)),
      stub_(worker::v1::KvTransfer::NewStub(channel_)) {}

void ClientPipe::Break() { context_.TryCancel(); }

void ClientPipe::End() {
  context_.TryCancel();
  RemoveHold();
}

void ClientPipe::OnDone(const grpc::Status& /*status*/) { Release(); }

}  // namespace baton::transport::nccl
