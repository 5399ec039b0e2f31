// One UCX endpoint: messages and puts to one peer.
#pragma once

#include <sys/socket.h>
#include <ucp/api/ucp.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "common/transport/ucx/message.h"
#include "common/transport/ucx/ucx_worker.h"

namespace baton::transport::ucx {

// Not thread-safe: used by the progress thread, and destroyed when closed(). `Done` callbacks run
// inside the call that started the operation or inside UcxWorker::Progress, each once.
class Endpoint {
 public:
  using Done = std::function<void(const absl::Status&)>;

  static absl::StatusOr<std::unique_ptr<Endpoint>> Connect(UcxWorker& worker,
                                                           const sockaddr_storage& peer);
  // Takes over `request`, on failure too.
  static absl::StatusOr<std::unique_ptr<Endpoint>> Accept(UcxWorker& worker,
                                                          ucp_conn_request_h request);
  ~Endpoint();
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  // `done` says only that the message has left.
  void Send(const Message& message, Done done = {});
  // `source` is borrowed until `done`, which says only that it is free again.
  void Put(std::span<const std::byte> source, uint64_t remote_address, ucp_rkey_h rkey, Done done);
  // `done` with OK: everything put before is in the peer's memory.
  void Flush(Done done);

  // Breaks off every open operation and ends the connection without the peer's help. Idempotent.
  void Close();
  // No byte that the peer puts can arrive any more. UCX ends an endpoint's connections inside
  // Progress, after it has called the endpoint closed.
  bool closed() const;

  // Why the connection is unusable; OK while it is not.
  const absl::Status& status() const { return status_; }
  size_t open_operations() const { return open_operations_; }
  // When an operation last ended.
  absl::Time last_progress() const { return last_progress_; }
  ucp_ep_h handle() const { return handle_; }
  std::string carrier() const;

 private:
  struct Operation;

  explicit Endpoint(UcxWorker& worker) : worker_(worker) {}
  absl::Status Create(ucp_ep_params_t params);
  void Track(ucs_status_ptr_t request, std::unique_ptr<Operation> operation);
  void End(const Operation& operation, ucs_status_t status);
  static void OnDone(void* request, ucs_status_t status, void* operation);
  static void OnClosed(void* request, ucs_status_t status, void* self);
  static void OnError(void* self, ucp_ep_h handle, ucs_status_t status);

  UcxWorker& worker_;
  ucp_ep_h handle_ = nullptr;
  bool closing_ = false;
  uint64_t close_round_ = 0;  // of the worker, when UCX had closed it
  size_t open_operations_ = 0;
  absl::Time last_progress_ = absl::InfinitePast();
  absl::Status status_;
};

}  // namespace baton::transport::ucx
