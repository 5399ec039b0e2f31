// The router's Prefill.Prefill call: one attempt of one request.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/client_callback.h"

#include "common/base/live_counter.h"
#include "common/rpc/request_metadata.h"
#include "proto/baton/worker/v1/prefill.pb.h"
#include "services/router/workers/worker.h"

namespace baton::router {

// Who gets a prefill call's events; see DecodeCallOwner.
class PrefillCallOwner {
 public:
  virtual ~PrefillCallOwner() = default;
  virtual void OnPrefillEvent(uint64_t call, const worker::v1::PrefillEvent& event) = 0;
  // Once, last.
  virtual void OnPrefillEnd(uint64_t call, const absl::Status& status) = 0;
};

// Its few messages are read as they come. Cancel may come from any thread.
class PrefillCall final : public grpc::ClientReadReactor<worker::v1::PrefillEvent> {
 public:
  static std::shared_ptr<PrefillCall> Start(std::shared_ptr<Worker> worker,
                                            worker::v1::PrefillRequest request,
                                            const rpc::RequestMetadata& metadata,
                                            absl::Time deadline,
                                            uint64_t number,
                                            std::shared_ptr<PrefillCallOwner> owner);

  void Cancel() { context_.TryCancel(); }

  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

 private:
  PrefillCall(std::shared_ptr<Worker> worker,
              worker::v1::PrefillRequest request,
              uint64_t number,
              std::shared_ptr<PrefillCallOwner> owner);

  const LiveCounter::Count counted_;      // first, so that it goes last
  const std::shared_ptr<Worker> worker_;  // owns the stub
  const worker::v1::PrefillRequest request_;
  const uint64_t number_;
  std::shared_ptr<PrefillCallOwner> owner_;
  std::shared_ptr<PrefillCall> self_;  // shared with gRPC until OnDone
  grpc::ClientContext context_;
  worker::v1::PrefillEvent event_;
};

}  // namespace baton::router
