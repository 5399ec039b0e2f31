// Two connected transports of one kind, for tests that hold for every back end.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"

#include "common/transport/grpc/grpc_transport.h"
#include "common/transport/ipc/ipc_transport.h"
#include "common/transport/loopback/loopback_transport.h"
#include "common/transport/nccl/nccl_transport.h"
#include "common/transport/transport.h"
#include "common/transport/ucx/ucx_transport.h"
#include "kernels/core/landing_memory.h"
#include "kernels/core/memory.h"
#include "kernels/core/shared_memory.h"
#include "tests/kernels/device_double/local_links.h"

namespace baton::transport {

// A server with one service, at the same port whenever it is started.
class LocalServer {
 public:
  // Returns the address.
  std::string Start(grpc::Service& service) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort(
        "127.0.0.1:" + std::to_string(port_), grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service);
    server_ = builder.BuildAndStart();
    port_ = port;
    return "127.0.0.1:" + std::to_string(port);
  }
  // Cancels calls.
  void Stop() {
    if (server_ != nullptr) {
      server_->Shutdown(std::chrono::system_clock::now());
      server_->Wait();
    }
    server_.reset();
  }

 private:
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

// KvTransfer with PushKv alone.
class PushService : public worker::v1::KvTransfer::CallbackService {
 public:
  explicit PushService(GrpcTransport* transport) : transport_(transport) {}
  grpc::ServerBidiReactor<worker::v1::KvChunk, worker::v1::KvChunkAck>* PushKv(
      grpc::CallbackServerContext* context) override {
    return transport_->NewPushKvReactor(context);
  }

 private:
  GrpcTransport* const transport_;
};

// A sending and a receiving transport; the receiver can be killed and started again.
class TransportPair {
 public:
  static constexpr int kMaxOpenPosts = 64;

  virtual ~TransportPair() = default;
  // `kind` is "loopback", "grpc", "ipc", "ipc_shared", "nccl", "ucx" or "ucx_puts".
  static std::unique_ptr<TransportPair> Make(const std::string& kind);

  Transport& sender() { return *sender_; }
  Transport& receiver() { return *receiver_; }
  // The receiver dies as a process would: connections break, its windows are gone.
  virtual void KillReceiver() = 0;
  virtual void StartReceiver() = 0;
  // The bytes where this kind of sender has them; they stay there.
  virtual std::span<const std::byte> Place(std::span<const std::byte> source) { return source; }

 protected:
  std::unique_ptr<Transport> sender_;
  std::unique_ptr<Transport> receiver_;
};

class LoopbackPair : public TransportPair {
 public:
  LoopbackPair() {
    sender_ = std::make_unique<LoopbackTransport>(
        network_, LoopbackOptions{.name = "sender", .max_open_posts = kMaxOpenPosts});
    StartReceiver();
  }
  void KillReceiver() override { receiver_.reset(); }
  void StartReceiver() override {
    receiver_ = std::make_unique<LoopbackTransport>(network_, LoopbackOptions{.name = "receiver"});
  }

 private:
  const std::shared_ptr<LoopbackNetwork> network_ = std::make_shared<LoopbackNetwork>();
};

class GrpcPair : public TransportPair {
 public:
  GrpcPair() {
    sender_ = std::make_unique<GrpcTransport>(
        GrpcTransportOptions{.credentials = grpc::InsecureChannelCredentials(),
                             .address = "",
                             .max_open_posts = kMaxOpenPosts,
                             .connect_timeout = absl::Seconds(5)});
    StartReceiver();
  }
  ~GrpcPair() override {
    sender_.reset();
    KillReceiver();
  }
  void KillReceiver() override {
    server_.Stop();
    service_.reset();
    receiver_.reset();
  }
  void StartReceiver() override {
    auto receiver = std::make_unique<GrpcTransport>(
        GrpcTransportOptions{.credentials = grpc::InsecureChannelCredentials()});
    service_ = std::make_unique<PushService>(receiver.get());
    receiver->set_address(server_.Start(*service_));
    receiver_ = std::move(receiver);
  }

 private:
  std::unique_ptr<PushService> service_;
  LocalServer server_;
};

// KvTransfer with Link alone.
class LinkService : public worker::v1::KvTransfer::CallbackService {
 public:
  explicit LinkService(NcclTransport* transport) : transport_(transport) {}
  grpc::ServerBidiReactor<worker::v1::LinkMessage, worker::v1::LinkMessage>* Link(
      grpc::CallbackServerContext* context) override {
    return transport_->NewLinkReactor(context);
  }

 private:
  NcclTransport* const transport_;
};

// Between devices that are not there, with small slots, so that a transfer takes several.
class NcclPair : public TransportPair {
 public:
  static constexpr size_t kSlotBytes = 64 << 10;

  // Slots are of `memory`, windows of `landing`. The receiver may hold `block_budget`.
  explicit NcclPair(kernels::MemorySpace& memory,
                    kernels::LandingMemory& landing,
                    int32_t block_budget = 128)
      : landing_(landing),
        block_budget_(block_budget),
        sender_links_(memory),
        receiver_links_(memory) {
    sender_ = *NcclTransport::Make({.links = &sender_links_,
                                    .credentials = grpc::InsecureChannelCredentials(),
                                    .sizes = {.slot_bytes = kSlotBytes},
                                    .max_open_posts = kMaxOpenPosts,
                                    .connect_timeout = absl::Seconds(5)});
    StartReceiver();
  }
  ~NcclPair() override {
    sender_.reset();
    KillReceiver();
  }
  void KillReceiver() override {
    server_.Stop();
    service_.reset();
    receiver_.reset();
  }
  void StartReceiver() override {
    auto receiver = *NcclTransport::Make(
        {.links = &receiver_links_, .memory = &landing_, .block_budget = block_budget_});
    service_ = std::make_unique<LinkService>(receiver.get());
    receiver->set_address(server_.Start(*service_));
    receiver_ = std::move(receiver);
  }
  kernels::LocalLinks& sender_links() { return sender_links_; }
  kernels::LocalLinks& receiver_links() { return receiver_links_; }

 private:
  kernels::LandingMemory& landing_;
  const int32_t block_budget_;
  kernels::LocalLinks sender_links_;
  kernels::LocalLinks receiver_links_;
  std::unique_ptr<LinkService> service_;
  LocalServer server_;
};

// Bytes go through the socket, or lie in memory that the receiver maps; windows are of the host or
// of `device`.
class IpcPair : public TransportPair {
 public:
  explicit IpcPair(bool shares, kernels::LandingMemory* device = nullptr) : device_(device) {
    if (shares) {
      arena_ = *kernels::SharedHostMemory().Allocate(kArenaBytes);
    }
    sender_ = *IpcTransport::Make({.max_open_posts = kMaxOpenPosts});
    StartReceiver();
  }
  void KillReceiver() override { receiver_.reset(); }
  void StartReceiver() override {
    receiver_ = *IpcTransport::Make({.listens = true, .device = device_});
  }
  std::span<const std::byte> Place(std::span<const std::byte> source) override {
    if (source.size() > arena_.size() - placed_) {
      return source;
    }
    std::byte* const place = arena_.data() + placed_;
    if (!source.empty()) {
      std::memcpy(place, source.data(), source.size());
    }
    placed_ += source.size();
    return {place, source.size()};
  }

 private:
  static constexpr size_t kArenaBytes = size_t{512} << 20;

  kernels::LandingMemory* const device_;
  kernels::Memory arena_;  // blocks are told of when a peer is connected to
  size_t placed_ = 0;
};

// UCX 1.13's TCP has puts of its own, which fail an assertion now and then; without them puts are
// emulated by messages. Set before there are threads.
inline const int kPutsAreEmulated = setenv("UCX_TCP_PUT_ENABLE", "n", /*overwrite=*/0);

// Over what UCX selects on this machine; small slots, so that a transfer takes several.
class UcxPair : public TransportPair {
 public:
  static constexpr uint32_t kSlotBytes = 32 << 10;

  UcxPair() : UcxPair(UcxTransportOptions{}) {}
  // `receiver` is completed.
  explicit UcxPair(const UcxTransportOptions& receiver) : receiver_options_(receiver) {
    receiver_options_.listen = "127.0.0.1:0";
    receiver_options_.slot_bytes = kSlotBytes;
    sender_ = *UcxTransport::Make({.max_open_posts = kMaxOpenPosts});
    StartReceiver();
  }
  void KillReceiver() override { receiver_.reset(); }
  void StartReceiver() override { receiver_ = *UcxTransport::Make(receiver_options_); }
  UcxStats receiver_stats() { return dynamic_cast<UcxTransport&>(*receiver_).stats(); }

 private:
  UcxTransportOptions receiver_options_;
};

inline std::unique_ptr<TransportPair> TransportPair::Make(const std::string& kind) {
  if (kind == "grpc") {
    return std::make_unique<GrpcPair>();
  }
  if (kind == "ipc" || kind == "ipc_shared") {
    return std::make_unique<IpcPair>(/*shares=*/kind == "ipc_shared");
  }
  if (kind == "nccl") {
    return std::make_unique<NcclPair>(kernels::HostMemory(), kernels::HostLanding());
  }
  if (kind == "ucx" || kind == "ucx_puts") {
    return std::make_unique<UcxPair>(UcxTransportOptions{.put_without_rdma = kind == "ucx_puts"});
  }
  return std::make_unique<LoopbackPair>();
}

}  // namespace baton::transport
