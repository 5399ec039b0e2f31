#include "common/transport/nccl/nccl_transport.h"

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "grpcpp/channel.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/support/channel_arguments.h"

#include "common/base/status_macros.h"
#include "common/rpc/callback_queue.h"
#include "common/transport/nccl/progress.h"
#include "common/transport/nccl/server_pipe.h"
#include "common/transport/threaded_transport.h"
#include "common/transport/transport.h"

namespace baton::transport {
namespace {

grpc::ChannelArguments ChannelArgs(const std::string& server_name) {
  grpc::ChannelArguments args;
  // A connection of its own, whose end is that of the pair.
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5'000);
  args.SetMaxReceiveMessageSize(64 << 10);  // receivers send short messages only
  // As for all channels between workers (common/rpc/channel.cc).
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  if (!server_name.empty()) {
    args.SetSslTargetNameOverride(server_name);
  }
  return args;
}

}  // namespace

absl::StatusOr<std::unique_ptr<NcclTransport>> NcclTransport::Make(
    const NcclTransportOptions& options) {
  rpc::PinCallbackQueue();
  std::unique_ptr<NcclTransport> transport(new NcclTransport(options));
  BATON_RETURN_IF_ERROR(transport->inbox()->Open());
  transport->StartThread(transport->progress_);
  return transport;
}

NcclTransport::NcclTransport(const NcclTransportOptions& options)
    : ThreadedTransport(options.max_open_posts),
      options_(options),
      progress_({.links = *options.links,
                 .memory = options.memory,
                 .sizes = options.sizes,
                 .block_budget = options.block_budget,
                 .max_inbound_peers = options.max_inbound_peers,
                 .idle_before_close = options.idle_before_close,
                 .connect_timeout = options.connect_timeout},
                inbox(),
                windows(),
                OnSent()) {}

NcclTransport::~NcclTransport() { StopThread(); }

std::string NcclTransport::connection_data() const {
  const absl::MutexLock lock(&mutex_);
  return address_;
}

void NcclTransport::set_address(std::string address) {
  const absl::MutexLock lock(&mutex_);
  address_ = std::move(address);
}

absl::StatusOr<std::shared_ptr<Connection>> NcclTransport::Connect(
    std::string_view connection_data) {
  const std::string address(connection_data);
  std::shared_ptr<grpc::Channel> channel =
      grpc::CreateCustomChannel(address, options_.credentials, ChannelArgs(options_.server_name));
  const absl::Time deadline = absl::Now() + options_.connect_timeout;
  if (!channel->WaitForConnected(absl::ToChronoTime(deadline))) {
    return absl::UnavailableError(absl::StrCat(
        "no connection to ", address, " within ", absl::FormatDuration(options_.connect_timeout)));
  }
  return AwaitConnect(
      address, [this, channel = std::move(channel)](const std::shared_ptr<ConnectCall>& call) {
        progress_.Connect(call, channel);
      });
}

grpc::ServerBidiReactor<worker::v1::LinkMessage, worker::v1::LinkMessage>*
NcclTransport::NewLinkReactor(grpc::CallbackServerContext* context) {
  const uint64_t id = progress_.NewId();
  const std::shared_ptr<nccl::ServerPipe> pipe =
      nccl::ServerPipe::Open(context, progress_.ToInbound(id));
  inbox()->Push([this, id, pipe] { progress_.Accept(id, pipe); });
  return pipe.get();
}

void NcclTransport::Drain() {
  inbox()->Push([this] { progress_.Drain(); });
}

}  // namespace baton::transport
