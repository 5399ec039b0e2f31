// The sending end of a KvTransfer.Link stream in the hands of a test.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "grpcpp/client_context.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/support/sync_stream.h"

#include "common/transport/nccl/link_sizes.h"
#include "proto/baton/worker/v1/kv_link.pb.h"
#include "proto/baton/worker/v1/kv_transfer.grpc.pb.h"
#include "tests/unit/transport/transport_pair.h"

namespace baton::transport {

// For the pair that `id` names, with slots of NcclPair's size.
inline worker::v1::LinkMessage LinkHelloOf(const std::string& id) {
  worker::v1::LinkMessage message;
  message.mutable_hello()->set_version(nccl::kLinkVersion);
  message.mutable_hello()->set_id(id);
  message.mutable_hello()->set_slot_bytes(NcclPair::kSlotBytes);
  message.mutable_hello()->set_max_blocks(4);
  return message;
}

// A sender that says what it is told to, and ends with its stream.
class RawLinkSender {
 public:
  explicit RawLinkSender(const std::string& address)
      : stub_(worker::v1::KvTransfer::NewStub(
            grpc::CreateChannel(address, grpc::InsecureChannelCredentials()))) {
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    stream_ = stub_->Link(&context_);
  }
  ~RawLinkSender() {
    context_.TryCancel();
    stream_->Finish();
  }

  void Say(const worker::v1::LinkMessage& message) { stream_->Write(message); }
  std::optional<worker::v1::LinkMessage> Await() {
    worker::v1::LinkMessage message;
    return stream_->Read(&message) ? std::optional(message) : std::nullopt;
  }
  bool AwaitEnd() {
    while (Await().has_value()) {
    }
    return std::chrono::system_clock::now() < context_.deadline();
  }

 private:
  const std::unique_ptr<worker::v1::KvTransfer::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<worker::v1::LinkMessage, worker::v1::LinkMessage>>
      stream_;
};

}  // namespace baton::transport
