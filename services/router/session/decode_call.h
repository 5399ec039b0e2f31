// The router's Decode.Generate call of one request.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/client_callback.h"

#include "common/base/live_counter.h"
#include "common/rpc/request_metadata.h"
#include "proto/baton/worker/v1/decode.pb.h"
#include "services/router/workers/worker.h"

namespace baton::router {

// Who gets a decode call's events. `call` is the number given to Start: a call that its owner has
// cancelled may still report.
class DecodeCallOwner {
 public:
  virtual ~DecodeCallOwner() = default;
  virtual void OnDecodeEvent(uint64_t call, worker::v1::DecodeEvent event) = 0;
  // Once, last.
  virtual void OnDecodeEnd(uint64_t call, const absl::Status& status) = 0;
};

// Messages are read one by one, when the owner asks: a message that is not asked for stays in
// gRPC's flow control. Start, Read and Cancel come from the owner, one at a time and in an order in
// which no Read follows Cancel.
class DecodeCall final : public grpc::ClientReadReactor<worker::v1::DecodeEvent> {
 public:
  // Opens the call and asks for its first message.
  static std::shared_ptr<DecodeCall> Start(std::shared_ptr<Worker> worker,
                                           worker::v1::DecodeRequest request,
                                           const rpc::RequestMetadata& metadata,
                                           absl::Time deadline,
                                           uint64_t number,
                                           std::shared_ptr<DecodeCallOwner> owner);

  // Asks for one more message; only after the one before has been reported.
  void Read();
  // Ends the call; the worker gives everything back.
  void Cancel();

  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

 private:
  DecodeCall(std::shared_ptr<Worker> worker,
             worker::v1::DecodeRequest request,
             uint64_t number,
             std::shared_ptr<DecodeCallOwner> owner);
  void ReleaseHold();

  const LiveCounter::Count counted_;      // first, so that it goes last
  const std::shared_ptr<Worker> worker_;  // owns the stub
  const worker::v1::DecodeRequest request_;
  const uint64_t number_;
  std::shared_ptr<DecodeCallOwner> owner_;
  std::shared_ptr<DecodeCall> self_;  // shared with gRPC until OnDone
  grpc::ClientContext context_;
  worker::v1::DecodeEvent event_;
  // Reads start outside reactions, so a hold keeps OnDone away while one may still come.
  std::atomic<bool> held_{true};
};

}  // namespace baton::router
