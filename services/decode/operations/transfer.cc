#include "services/decode/operations/transfer.h"

#include <memory>
#include <utility>

#include "common/rpc/status_details.h"
#include "common/rpc/status_mapping.h"
#include "common/rpc/stream_writer.h"
#include "common/worker/engine_status.h"

namespace baton::decode::operations {
namespace {

using worker::v1::TransferRequest;
using worker::v1::TransferResponse;

// A session answers with at most two small messages.
constexpr size_t kMaxPendingBytes = size_t{64} << 10;

// Shared by gRPC (until OnDone) and by the session, which may answer later. One read is outstanding
// until the peer ends the stream or the session has finished it.
class TransferCall final : public grpc::ServerBidiReactor<TransferRequest, TransferResponse>,
                           public handoff::LandingResponder,
                           public std::enable_shared_from_this<TransferCall> {
 public:
  explicit TransferCall(worker::Worker& worker)
      : worker_(worker), writer_(this, kMaxPendingBytes, {}) {}

  void Start(handoff::Landing& landing) {
    self_ = shared_from_this();
    session_ = landing.StartSession(self_);
    StartRead(&request_);
  }
  void Refuse(const absl::Status& status) {
    self_ = shared_from_this();
    Finish(status);
  }

  // gRPC.
  void OnReadDone(bool ok) override {
    if (ok) {
      session_->OnMessage(request_);
      StartRead(&request_);
      return;
    }
    // The peer ended the stream, or the session has finished it; for that one this is nothing new.
    session_->OnClosed();
    Finish(absl::CancelledError("the sender ended the transfer"));
  }
  void OnWriteDone(bool ok) override { writer_.OnWriteDone(ok); }
  void OnDone() override {
    session_.reset();
    self_.reset();
  }

  // LandingResponder.
  void Send(TransferResponse message) override {
    // Bounded by the session's own limit; a stream that broke is reported by OnReadDone.
    writer_.Write(std::move(message)).IgnoreError();
  }
  void Finish(absl::Status status) override {
    if (absl::IsDataLoss(status)) {
      worker_.metrics().RecordChecksumFailure();
    }
    writer_.Finish(rpc::ToGrpcStatus(worker::DescribeStatus(std::move(status))));
  }

 private:
  worker::Worker& worker_;
  TransferRequest request_;  // of the outstanding read
  rpc::StreamWriter<TransferResponse, grpc::ServerBidiReactor<TransferRequest, TransferResponse>>
      writer_;
  std::shared_ptr<handoff::LandingSession> session_;
  std::shared_ptr<TransferCall> self_;  // until OnDone
};

}  // namespace

grpc::ServerBidiReactor<TransferRequest, TransferResponse>* Transfer(worker::Worker& worker,
                                                                     handoff::Landing& landing) {
  auto call = std::make_shared<TransferCall>(worker);
  if (absl::Status status = worker::CheckAccepting(worker); !status.ok()) {
    call->Refuse(status);
  } else {
    call->Start(landing);
  }
  return call.get();
}

}  // namespace baton::decode::operations
