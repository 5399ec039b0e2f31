#include "services/prefill/peers/grpc_control_stream.h"

#include <deque>
#include <memory>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/client_callback.h"

#include "common/base/live_counter.h"
#include "common/handoff/send/control_stream.h"
#include "common/rpc/request_metadata.h"
#include "common/rpc/status_details.h"
#include "common/rpc/status_mapping.h"
#include "proto/baton/worker/v1/kv_transfer.grpc.pb.h"

namespace baton::prefill {
namespace {

using worker::v1::TransferRequest;
using worker::v1::TransferResponse;

// The reactor: shared by its owner and, while the call is open, by itself.
//
// Writes start outside gRPC's reactions, so the call is held (AddHold) until reading has ended and
// no write is in flight; only then may OnDone come.
class TransferClient final : public grpc::ClientBidiReactor<TransferRequest, TransferResponse>,
                             public std::enable_shared_from_this<TransferClient> {
 public:
  TransferClient(std::shared_ptr<grpc::Channel> channel,
                 absl::Time deadline,
                 const rpc::RequestMetadata& metadata,
                 LiveCounter& live)
      : counted_(&live), stub_(worker::v1::KvTransfer::NewStub(std::move(channel))) {
    rpc::SetDeadline(deadline, &context_);
    rpc::AddRequestMetadata(metadata, &context_);
  }

  void Open(std::shared_ptr<handoff::ControlStreamEvents> events) {
    self_ = shared_from_this();
    events_ = std::move(events);
    stub_->async()->Transfer(&context_, this);
    AddHold();
    StartRead(&response_);
    StartCall();
  }

  void Send(TransferRequest message) {
    {
      absl::MutexLock lock(&mutex_);
      if (closed_) {
        return;
      }
      pending_.push_back(std::move(message));
    }
    WriteNext();
  }

  void Cancel() {
    {
      absl::MutexLock lock(&mutex_);
      cancelled_ = true;
    }
    context_.TryCancel();
  }

  void OnReadDone(bool ok) override {
    if (ok) {
      events_->OnMessage(response_);
      StartRead(&response_);
      return;
    }
    bool release = false;
    {
      absl::MutexLock lock(&mutex_);
      closed_ = true;
      pending_.clear();
      release = !writing_;
    }
    if (release) {
      RemoveHold();
    }
  }

  void OnWriteDone(bool ok) override {
    bool release = false;
    {
      absl::MutexLock lock(&mutex_);
      writing_ = false;
      if (!ok) {
        pending_.clear();  // the read ends too and says why
      }
      release = closed_;
    }
    if (release) {
      RemoveHold();
    } else {
      WriteNext();
    }
  }

  void OnDone(const grpc::Status& status) override {
    events_->OnClosed(CloseStatus(rpc::FromGrpcStatus(status)));
    events_.reset();
    self_.reset();
  }

 private:
  void WriteNext() {
    {
      absl::MutexLock lock(&mutex_);
      if (writing_ || pending_.empty()) {
        return;
      }
      writing_ = true;
      current_ = std::move(pending_.front());
      pending_.pop_front();
    }
    StartWrite(&current_);
  }

  // Codes by which gRPC reports a peer that died become "decode lost", unless we cancelled.
  absl::Status CloseStatus(absl::Status status) {
    absl::MutexLock lock(&mutex_);
    if (status.ok() || cancelled_ || !rpc::ReasonOf(status).empty()) {
      return status;
    }
    switch (status.code()) {
      case absl::StatusCode::kUnavailable:
      case absl::StatusCode::kCancelled:
      case absl::StatusCode::kUnknown:
        return rpc::WithReason(
            absl::UnavailableError(absl::StrCat("the decode worker was lost: ", status.message())),
            rpc::reason::kDecodeLost);
      default:
        return status;
    }
  }

  const LiveCounter::Count counted_;  // first, so that it goes last
  const std::unique_ptr<worker::v1::KvTransfer::Stub> stub_;
  grpc::ClientContext context_;
  std::shared_ptr<handoff::ControlStreamEvents> events_;
  TransferResponse response_;  // of the outstanding read
  TransferRequest current_;    // the write in flight; belongs to whoever set writing_
  std::shared_ptr<TransferClient> self_;

  absl::Mutex mutex_;
  std::deque<TransferRequest> pending_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

class GrpcControlStream final : public handoff::ControlStream {
 public:
  explicit GrpcControlStream(std::shared_ptr<TransferClient> client) : client_(std::move(client)) {}
  ~GrpcControlStream() override { client_->Cancel(); }

  void Start(std::shared_ptr<handoff::ControlStreamEvents> events) override {
    client_->Open(std::move(events));
  }
  void Send(TransferRequest message) override { client_->Send(std::move(message)); }
  void Cancel() override { client_->Cancel(); }

 private:
  const std::shared_ptr<TransferClient> client_;
};

}  // namespace

std::unique_ptr<handoff::ControlStream> MakeGrpcControlStream(
    std::shared_ptr<grpc::Channel> channel,
    absl::Time deadline,
    const rpc::RequestMetadata& metadata,
    LiveCounter& live) {
  return std::make_unique<GrpcControlStream>(
      std::make_shared<TransferClient>(std::move(channel), deadline, metadata, live));
}

}  // namespace baton::prefill
