// UCX's context, worker and listener, with what they hand out as owned objects.
#pragma once

#include <netinet/in.h>
#include <ucp/api/ucp.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace baton::transport::ucx {

// The one active message handler.
inline constexpr unsigned kMessageId = 1;

// `what` failed. kUnavailable for what says that the peer is gone or can't be reached, kCancelled
// for an operation that its endpoint's end broke off, kPermissionDenied for a refused connection.
absl::Status FromUcs(ucs_status_t status, std::string_view what);

// Not thread-safe: used by the one thread that makes progress. Handlers are called inside Progress.
class UcxWorker {
 public:
  struct Handlers {
    // Bytes of an active message, valid during the call, and the endpoint to answer by.
    std::function<void(ucp_ep_h, std::span<const std::byte>)> message{};
    // Must be released by ucp_ep_create or Reject.
    std::function<void(ucp_conn_request_h, const sockaddr_storage& peer)> connection{};
  };

  // Transports and devices follow UCX_TLS, UCX_NET_DEVICES and the rest of UCX's environment.
  static absl::StatusOr<std::unique_ptr<UcxWorker>> Make(Handlers handlers);
  // Every endpoint must be closed.
  ~UcxWorker();
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  // Takes connections at "host:port" (port 0: a free one); returns the port.
  absl::StatusOr<uint16_t> Listen(const std::string& address);
  void StopListening();
  void Reject(ucp_conn_request_h request);

  // Whether anything happened.
  bool Progress();
  // Calls of Progress so far.
  uint64_t rounds() const { return rounds_; }
  // Waits for something to progress, for `wake_fd` to be readable, or for `deadline`.
  void Wait(int wake_fd, absl::Time deadline);

  ucp_context_h context() const { return context_; }
  ucp_worker_h handle() const { return worker_; }

 private:
  explicit UcxWorker(Handlers handlers) : handlers_(std::move(handlers)) {}
  absl::Status Bring();
  static ucs_status_t OnMessage(void* self,
                                const void* header,
                                size_t header_bytes,
                                void* data,
                                size_t bytes,
                                const ucp_am_recv_param_t* param);
  static void OnConnection(ucp_conn_request_h request, void* self);

  const Handlers handlers_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucp_listener_h listener_ = nullptr;
  int fd_ = -1;
  uint64_t rounds_ = 0;
};

// As UCX takes it; borrows `address`.
ucs_sock_addr_t SockAddr(const sockaddr_storage& address);

// The first address of "host:port". kInvalidArgument, or kUnavailable when the name has none.
absl::StatusOr<sockaddr_storage> Resolve(const std::string& address, bool allow_port_zero);

}  // namespace baton::transport::ucx
