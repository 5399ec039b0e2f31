#include "services/decode/decode_server.h"

#include <memory>
#include <utility>

#include "common/base/status_macros.h"
#include "common/handoff/land/landing.h"
#include "common/rpc/tls.h"
#include "common/worker/transports.h"
#include "common/worker/worker.h"
#include "common/worker/worker_options.h"
#include "services/decode/decode_service.h"
#include "services/decode/kv_transfer_service.h"

namespace baton::decode {
namespace {

// Decode only receives, so its transport never dials; without roots it could not.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> TransportCredentials(
    const rpc::TlsOptions& tls) {
  return tls.ca.empty() ? grpc::InsecureChannelCredentials() : rpc::MakeChannelCredentials(tls);
}

}  // namespace

absl::StatusOr<std::unique_ptr<DecodeServer>> DecodeServer::Start(worker::WorkerOptions options) {
  std::unique_ptr<DecodeServer> server(new DecodeServer());
  BATON_RETURN_IF_ERROR(server->Bring(std::move(options)));
  return server;
}

absl::Status DecodeServer::Bring(worker::WorkerOptions options) {
  BATON_ASSIGN_OR_RETURN(auto credentials, TransportCredentials(options.tls));
  BATON_ASSIGN_OR_RETURN(worker_, worker::Worker::Load(std::move(options)));
  BATON_ASSIGN_OR_RETURN(transports_,
                         worker::Transports::Make(worker_->options(),
                                                  std::move(credentials),
                                                  /*receives=*/true,
                                                  worker_->transport_device()));
  landing_ = std::make_unique<handoff::Landing>(
      transports_->list(), worker_->layout(), handoff::LandingOptions{});
  BATON_RETURN_IF_ERROR(worker_->StartEngine(landing_.get()));
  transports_->Watch(worker_->metrics());
  landing_->set_engine(&worker_->engine());
  decode_service_ = std::make_unique<DecodeService>(worker_.get(), landing_.get());
  kv_transfer_service_ =
      std::make_unique<KvTransferService>(worker_.get(), landing_.get(), transports_.get());
  BATON_RETURN_IF_ERROR(
      worker_->StartServer({decode_service_.get(), kv_transfer_service_.get()},
                           {"baton.worker.v1.Decode", "baton.worker.v1.KvTransfer"}));
  transports_->set_address(worker_->address());
  return worker_->Open();
}

DecodeServer::~DecodeServer() {
  if (worker_ != nullptr) {
    Shutdown(absl::ZeroDuration());
  }
  // Sessions that end only now report to calls, which report to the worker.
  landing_.reset();
  transports_.reset();  // may map peers' memory by the worker's
}

void DecodeServer::Shutdown(absl::Duration grace) {
  if (transports_ != nullptr && transports_->nccl() != nullptr) {
    transports_->nccl()->Drain();  // the server's end waits for its streams
  }
  worker_->Shutdown(grace);
}

}  // namespace baton::decode
