#include "common/transport/grpc/grpc_transport.h"

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "grpcpp/create_channel.h"

#include "common/rpc/callback_queue.h"
#include "common/transport/completion_queue.h"
#include "common/transport/grpc/push_receiver.h"
#include "common/transport/grpc/push_stream.h"
#include "common/transport/transport.h"
#include "common/transport/window_table.h"
#include "kernels/core/landing_memory.h"

namespace baton::transport {
namespace {

class GrpcConnection : public Connection {
 public:
  GrpcConnection(std::string address, std::shared_ptr<grpc::Channel> channel)
      : address_(std::move(address)),
        channel_(std::move(channel)),
        stub_(worker::v1::KvTransfer::NewStub(channel_)) {}
  std::string_view carrier() const override { return "grpc"; }
  const std::string& address() const { return address_; }
  // Whether the channel is in a state in which a call can begin; a failed one is re-made by
  // Connect.
  bool usable() const {
    const grpc_connectivity_state state = channel_->GetState(false);
    return state != GRPC_CHANNEL_TRANSIENT_FAILURE && state != GRPC_CHANNEL_SHUTDOWN;
  }
  worker::v1::KvTransfer::Stub& stub() { return *stub_; }

 private:
  const std::string address_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<worker::v1::KvTransfer::Stub> stub_;
};

grpc::ChannelArguments ChannelArgs(const std::string& server_name) {
  grpc::ChannelArguments args;
  // A connection of its own: bulk bytes don't queue in front of control messages.
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 30'000);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  args.SetMaxReceiveMessageSize(64 << 10);  // acks only
  // As for all channels between workers (common/rpc/channel.cc).
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  if (!server_name.empty()) {
    args.SetSslTargetNameOverride(server_name);
  }
  return args;
}

}  // namespace

GrpcTransport::GrpcTransport(GrpcTransportOptions options)
    : options_(std::move(options)),
      completions_(std::make_shared<CompletionQueue>()),
      windows_(std::make_shared<WindowTable>(completions_)),
      address_(options_.address) {
  rpc::PinCallbackQueue();
}

GrpcTransport::~GrpcTransport() {
  Release();
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(
      +[](std::unordered_map<uint64_t, std::shared_ptr<PushStream>>* posts) {
        return posts->empty();
      },
      &open_posts_));
}

std::string GrpcTransport::connection_data() const {
  absl::MutexLock lock(&mutex_);
  return address_;
}

void GrpcTransport::set_address(std::string address) {
  absl::MutexLock lock(&mutex_);
  address_ = std::move(address);
}

grpc::ServerBidiReactor<worker::v1::KvChunk, worker::v1::KvChunkAck>*
GrpcTransport::NewPushKvReactor(grpc::CallbackServerContext* /*context*/) {
  const auto receiver = std::make_shared<PushReceiver>(windows_);
  receiver->Start();
  return receiver.get();
}

absl::StatusOr<std::unique_ptr<Window>> GrpcTransport::Register(
    std::vector<std::span<std::byte>> extents, kernels::LandingMemory& memory) {
  return windows_->Register(extents, memory);
}

absl::StatusOr<std::shared_ptr<Connection>> GrpcTransport::Connect(
    std::string_view connection_data) {
  std::string address(connection_data);
  std::shared_ptr<grpc::Channel> channel =
      grpc::CreateCustomChannel(address, options_.credentials, ChannelArgs(options_.server_name));
  const absl::Time deadline = absl::Now() + options_.connect_timeout;
  if (!channel->WaitForConnected(absl::ToChronoTime(deadline))) {
    return absl::UnavailableError(absl::StrCat(
        "no connection to ", address, " within ", absl::FormatDuration(options_.connect_timeout)));
  }
  return std::make_shared<GrpcConnection>(std::move(address), std::move(channel));
}

absl::Status GrpcTransport::Post(const std::shared_ptr<Connection>& connection, PostParams params) {
  const auto peer = std::dynamic_pointer_cast<GrpcConnection>(connection);
  if (peer == nullptr) {
    return absl::InvalidArgumentError("the connection was not made by this transport");
  }
  const auto has_bytes = [](const SendRun& run) { return !run.source.empty(); };
  if (std::none_of(params.runs.begin(), params.runs.end(), has_bytes)) {
    return absl::InvalidArgumentError("a post needs at least one byte");
  }
  if (!peer->usable()) {
    return absl::UnavailableError(absl::StrCat("the connection to ", peer->address(), " is lost"));
  }
  const uint64_t tag = params.tag;
  // The stream keeps its connection alive.
  auto stream = std::make_shared<PushStream>(
      std::move(params),
      [this, tag, peer](Completion completion) { OnStreamDone(tag, std::move(completion)); });
  {
    absl::MutexLock lock(&mutex_);
    if (completions_->released()) {
      return absl::UnavailableError("the transport was released");
    }
    if (open_posts_.size() >= static_cast<size_t>(options_.max_open_posts)) {
      return absl::ResourceExhaustedError(
          absl::StrCat(options_.max_open_posts, " posts are open; retry after a completion"));
    }
    if (!open_posts_.emplace(tag, stream).second) {
      return absl::AlreadyExistsError("a post with this tag is open");
    }
  }
  stream->Start(*peer->stub().async());
  return absl::OkStatus();
}

void GrpcTransport::OnStreamDone(uint64_t tag, Completion completion) {
  // The transport may be gone as soon as its last post is: the queue is held for the push. A caller
  // that sees the completion finds the tag and a place in the queue free.
  const std::shared_ptr<CompletionQueue> completions = completions_;
  std::shared_ptr<PushStream> stream;  // its last reference may be the map's
  {
    absl::MutexLock lock(&mutex_);
    const auto found = open_posts_.find(tag);
    stream = std::move(found->second);
    open_posts_.erase(found);
  }
  completions->Push(std::move(completion));
}

void GrpcTransport::CancelPost(uint64_t tag) {
  std::shared_ptr<PushStream> stream;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = open_posts_.find(tag);
    if (found == open_posts_.end()) {
      return;
    }
    stream = found->second;
  }
  stream->Cancel();
}

absl::Status GrpcTransport::Expect(const ExpectParams& params) {
  return WindowTable::Announce(params);
}

std::vector<Completion> GrpcTransport::Poll(absl::Time deadline) {
  return completions_->Poll(deadline);
}

void GrpcTransport::Release() {
  completions_->Release();
  windows_->WithdrawAll();
  std::vector<std::shared_ptr<PushStream>> streams;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [tag, stream] : open_posts_) {
      streams.push_back(stream);
    }
  }
  for (const std::shared_ptr<PushStream>& stream : streams) {
    stream->Cancel();
  }
}

}  // namespace baton::transport
