// A decode worker: puts engine, landing, transports and services together.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "common/handoff/land/landing.h"
#include "common/worker/transports.h"
#include "common/worker/worker.h"
#include "services/decode/decode_service.h"
#include "services/decode/kv_transfer_service.h"

namespace baton::decode {

// Members are ordered so that each is destroyed before what it uses.
class DecodeServer {
 public:
  // Loads the model and serves; returns when requests are accepted. Errors name flag, file or
  // address.
  static absl::StatusOr<std::unique_ptr<DecodeServer>> Start(worker::WorkerOptions options);
  // Shutdown without grace.
  ~DecodeServer();

  // Ends every call after `grace`, then stops the engine.
  void Shutdown(absl::Duration grace);

  worker::Worker& worker() { return *worker_; }
  handoff::Landing& landing() { return *landing_; }

 private:
  DecodeServer() = default;
  absl::Status Bring(worker::WorkerOptions options);

  std::unique_ptr<worker::Transports> transports_;
  std::unique_ptr<handoff::Landing> landing_;
  std::unique_ptr<DecodeService> decode_service_;
  std::unique_ptr<KvTransferService> kv_transfer_service_;
  std::unique_ptr<worker::Worker> worker_;
};

}  // namespace baton::decode
