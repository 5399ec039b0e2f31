#include "services/decode/decode_server.h"

#include <utility>

#include "common/base/status_macros.h"
#include "common/rpc/tls.h"

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
  transport_ = std::make_unique<transport::GrpcTransport>(
      transport::GrpcTransportOptions{.credentials = std::move(credentials), .address = ""});
  landing_ =
      std::make_unique<handoff::Landing>(std::vector<transport::Transport*>{transport_.get()},
                                         worker_->layout(),
                                         handoff::LandingOptions{});
  BATON_RETURN_IF_ERROR(worker_->StartEngine(landing_.get()));
  landing_->set_engine(&worker_->engine());
  decode_service_ = std::make_unique<DecodeService>(worker_.get(), landing_.get());
  kv_transfer_service_ =
      std::make_unique<KvTransferService>(worker_.get(), landing_.get(), transport_.get());
  BATON_RETURN_IF_ERROR(
      worker_->StartServer({decode_service_.get(), kv_transfer_service_.get()},
                           {"baton.worker.v1.Decode", "baton.worker.v1.KvTransfer"}));
  transport_->set_address(worker_->address());
  return worker_->Open();
}

DecodeServer::~DecodeServer() {
  if (worker_ != nullptr) {
    Shutdown(absl::ZeroDuration());
  }
  // Sessions that end only now report to calls, which report to the worker.
  landing_.reset();
}

void DecodeServer::Shutdown(absl::Duration grace) { worker_->Shutdown(grace); }

}  // namespace baton::decode
