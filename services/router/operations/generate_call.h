// What Generate and GenerateStream have in common: from the client's request to a session and back.
#pragma once

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"

#include "proto/baton/inference/v1/inference.pb.h"
#include "services/router/router_core.h"

namespace baton::router {

// Base of the two reactors. Begin prepares the request on the prompt pool, starts its session and
// hands every message to Deliver and the end to End, one at a time. Held by shared_ptr because
// pool, session and gRPC refer to it. Thread-safe.
class GenerateCall : public SessionClient, public std::enable_shared_from_this<GenerateCall> {
 public:
  // `context` lives until End has been called.
  GenerateCall(RouterCore* core, grpc::CallbackServerContext* context);

  // Call once, right after construction.
  void Begin(const grpc::ByteBuffer& request);

  // SessionClient
  void OnOutput() override;

 protected:
  // Takes a message. True: it is on its way, and DeliveryDone will be called; false: it was taken
  // at once.
  virtual bool Deliver(inference::v1::GenerateStreamResponse&& message) = 0;
  // Finishes the RPC with this status. Nothing follows.
  virtual void End(const absl::Status& status) = 0;

  // The message of Deliver was written, or not: the client is gone.
  void DeliveryDone(bool ok);
  // The client cancelled or its deadline passed.
  void ClientGone();
  // Ends the request with `status`; to be called from Deliver.
  void Refuse(const absl::Status& status);

  grpc::CallbackServerContext* context() { return context_; }

 private:
  // The id that the request asks for, else that of its metadata, else one of ours; sent back. A
  // request that is refused before it is parsed asks for none.
  void SetRequestId(const std::string& asked);
  absl::Status CheckAccepting() const;
  void Prepare();
  // Of the bytes of Begin.
  absl::StatusOr<std::shared_ptr<Session>> MakeSession();
  void EndWithoutSession(const absl::Status& status);
  // Moves messages from the session to the client until nothing is ready or one is on its way.
  void Pump();

  RouterCore* const core_;
  const LiveCounter::Count counted_;
  grpc::CallbackServerContext* const context_;
  const absl::Time received_;
  // Parsed on the pool: of a message of many empty parts each takes 20 times the memory that it
  // takes on the wire, and hundreds may wait.
  grpc::ByteBuffer bytes_;
  rpc::RequestMetadata metadata_;
  trace::CallSpan span_;  // a session that runs ends a copy of it
  std::string request_id_;

  absl::Mutex mutex_;
  std::shared_ptr<Session> session_ ABSL_GUARDED_BY(mutex_);
  bool client_gone_ ABSL_GUARDED_BY(mutex_) = false;
  // One thread pumps, or a message is on its way; then news only sets pump_again_.
  bool pumping_ ABSL_GUARDED_BY(mutex_) = false;
  bool pump_again_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace baton::router
