#include "common/rpc/callback_queue.h"

#include <chrono>
#include <memory>

#include "absl/synchronization/notification.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/byte_buffer.h"

namespace baton::rpc {
namespace {

// A call whose deadline has passed ends at once and never connects; making it is what takes the
// channel's reference to the callback queue.
std::shared_ptr<grpc::Channel>* MakePinnedChannel() {
  auto* channel = new std::shared_ptr<grpc::Channel>(
      grpc::CreateChannel("127.0.0.1:9", grpc::InsecureChannelCredentials()));
  grpc::GenericStub stub(*channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::time_point());
  const grpc::Slice nothing("");
  const grpc::ByteBuffer request(&nothing, 1);
  grpc::ByteBuffer response;
  absl::Notification ended;
  stub.UnaryCall(&context,
                 "/baton/Pin",
                 grpc::StubOptions(),
                 &request,
                 &response,
                 [&ended](const grpc::Status&) { ended.Notify(); });
  ended.WaitForNotification();
  return channel;
}

}  // namespace

void PinCallbackQueue() {
  // `used`: nothing reads it, but it has to stay for a leak checker to find the channel by.
  [[gnu::used]] static std::shared_ptr<grpc::Channel>* const kPinned = MakePinnedChannel();
}

}  // namespace baton::rpc
