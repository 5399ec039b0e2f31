// A prefill worker: puts engine, sender, transports and service together.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "common/base/live_counter.h"
#include "common/handoff/retain/retention.h"
#include "common/handoff/send/sender.h"
#include "common/worker/transports.h"
#include "common/worker/worker.h"
#include "services/prefill/peers/channel_cache.h"
#include "services/prefill/peers/grpc_handshake_client.h"
#include "services/prefill/prefill_service.h"

namespace baton::prefill {

// Members are ordered so that each is destroyed before what it uses.
class PrefillServer {
 public:
  // Loads the model and serves; returns when requests are accepted. Errors name flag, file or
  // address.
  static absl::StatusOr<std::unique_ptr<PrefillServer>> Start(worker::WorkerOptions options);
  // Shutdown without grace.
  ~PrefillServer();

  // Ends every call after `grace`, then stops the engine.
  void Shutdown(absl::Duration grace);

  worker::Worker& worker() { return *worker_; }

 private:
  PrefillServer() = default;
  absl::Status Bring(worker::WorkerOptions options);

  LiveCounter streams_;  // to decode workers
  std::unique_ptr<ChannelCache> channels_;
  std::unique_ptr<GrpcHandshakeClient> handshake_client_;
  std::unique_ptr<worker::Transports> transports_;
  std::unique_ptr<handoff::Retention> retention_;
  std::unique_ptr<handoff::Sender> sender_;
  std::unique_ptr<PrefillService> prefill_service_;
  std::unique_ptr<worker::Worker> worker_;
};

}  // namespace baton::prefill
