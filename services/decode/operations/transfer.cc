#include "services/decode/operations/transfer.h"

#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "common/handoff/land/landing.h"
#include "common/handoff/land/landing_session.h"
#include "common/rpc/request_metadata.h"
#include "common/rpc/status_mapping.h"
#include "common/rpc/stream_writer.h"
#include "common/trace/call_span.h"
#include "common/worker/engine_status.h"
#include "common/worker/worker.h"

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
  TransferCall(worker::Worker& worker, const grpc::CallbackServerContext& context)
      : worker_(worker),
        metadata_(rpc::ReadRequestMetadata(context)),
        span_(worker.spans(), metadata_.traceparent, /*may_begin=*/false),
        writer_(this, kMaxPendingBytes, {}) {}

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
    status = worker::DescribeStatus(std::move(status));
    EndSpan(status);
    writer_.Finish(rpc::ToGrpcStatus(status));
  }

 private:
  // The first Finish counts, as for the stream; the session and the end of reading may race.
  void EndSpan(const absl::Status& status) {
    absl::MutexLock lock(&span_mutex_);
    span_.End("baton.worker.v1.KvTransfer/Transfer",
              started_,
              absl::Now(),
              status,
              {{"baton.request_id", metadata_.request_id}});
  }

  worker::Worker& worker_;
  const absl::Time started_ = absl::Now();
  const rpc::RequestMetadata metadata_;
  absl::Mutex span_mutex_;
  trace::CallSpan span_ ABSL_GUARDED_BY(span_mutex_);
  TransferRequest request_;  // of the outstanding read
  rpc::StreamWriter<TransferResponse, grpc::ServerBidiReactor<TransferRequest, TransferResponse>>
      writer_;
  std::shared_ptr<handoff::LandingSession> session_;
  std::shared_ptr<TransferCall> self_;  // until OnDone
};

}  // namespace

grpc::ServerBidiReactor<TransferRequest, TransferResponse>* Transfer(
    worker::Worker& worker, handoff::Landing& landing, grpc::CallbackServerContext* context) {
  auto call = std::make_shared<TransferCall>(worker, *context);
  if (absl::Status status = worker::CheckAccepting(worker); !status.ok()) {
    call->Refuse(status);
  } else {
    call->Start(landing);
  }
  return call.get();
}

}  // namespace baton::decode::operations
