#include "common/transport/grpc/push_stream.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace baton::transport {

PushStream::PushStream(PostParams params, Done done)
    : params_(std::move(params)), done_(std::move(done)), cutter_(params_.runs, kMaxChunkBytes) {
  if (params_.deadline != absl::InfiniteFuture()) {
    context_.set_deadline(absl::ToChronoTime(params_.deadline));
  }
}

void PushStream::Start(worker::v1::KvTransfer::StubInterface::async_interface& stub) {
  self_ = shared_from_this();
  stub.PushKv(&context_, this);
  chunk_.set_window(params_.window);
  StartRead(&ack_);
  WriteNext();
  StartCall();
}

void PushStream::WriteNext() {
  chunk_.set_transfer_id(params_.transfer_id);
  std::string& payload = *chunk_.mutable_payload();
  payload.clear();
  payload.reserve(std::min(kMaxChunkBytes, static_cast<size_t>(cutter_.total_bytes())));
  chunk_.set_offset(static_cast<uint64_t>(cutter_.Next(payload)));
  if (cutter_.done()) {
    chunk_.set_total_bytes(static_cast<uint64_t>(cutter_.total_bytes()));
    StartWriteLast(&chunk_, grpc::WriteOptions());
  } else {
    StartWrite(&chunk_);
  }
}

void PushStream::OnWriteDone(bool ok) {
  // A failed write means that the stream has ended; its status comes with OnDone.
  if (ok && !cutter_.done() && !cancelled_) {
    chunk_.clear_window();
    WriteNext();
  }
}

void PushStream::OnReadDone(bool ok) { acked_ = ok; }

void PushStream::Cancel() {
  cancelled_ = true;
  context_.TryCancel();
}

absl::Status PushStream::Outcome(const grpc::Status& status) const {
  if (acked_) {
    return ack_.code() == 0
               ? absl::OkStatus()
               : absl::Status(static_cast<absl::StatusCode>(ack_.code()), ack_.message());
  }
  if (cancelled_) {
    return absl::CancelledError("the post was cancelled");
  }
  switch (status.error_code()) {
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return absl::DeadlineExceededError("the peer did not take the bytes by the deadline");
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
    case grpc::StatusCode::UNIMPLEMENTED:
    case grpc::StatusCode::UNAUTHENTICATED:
    case grpc::StatusCode::PERMISSION_DENIED:
      return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                          status.error_message());
    default:
      return absl::UnavailableError(
          absl::StrCat("the peer ended the stream without an ack: ", status.error_message()));
  }
}

void PushStream::OnDone(const grpc::Status& status) {
  const std::shared_ptr<PushStream> self = std::move(self_);
  done_(Completion{.kind = CompletionKind::kSent,
                   .tag = params_.tag,
                   .status = Outcome(status),
                   .bytes = cutter_.total_bytes()});
}

}  // namespace baton::transport
