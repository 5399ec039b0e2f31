#include "common/transport/grpc/push_receiver.h"

#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

#include "common/base/status_macros.h"
#include "common/transport/grpc/push_stream.h"
#include "common/transport/window_table.h"

namespace baton::transport {
namespace {

absl::Status GivenUp() { return absl::UnavailableError("the sender gave the transfer up"); }

}  // namespace

PushReceiver::PushReceiver(std::shared_ptr<WindowTable> windows) : windows_(std::move(windows)) {}

void PushReceiver::Start() {
  self_ = shared_from_this();
  StartRead(&chunk_);
}

void PushReceiver::OnReadDone(bool ok) {
  if (!ok) {
    End(absl::UnavailableError("the sender's stream ended before its last chunk"));
  } else if (window_ == nullptr) {
    TakeFirstChunk();
  } else {
    TakeChunk();
  }
}

void PushReceiver::TakeFirstChunk() {
  transfer_id_ = chunk_.transfer_id();
  window_ = windows_->Find(chunk_.window());
  if (window_ == nullptr) {
    End(absl::FailedPreconditionError("the window is unknown or withdrawn"));
    return;
  }
  {
    absl::MutexLock lock(&mutex_);
    parked_ = true;
  }
  const auto self = shared_from_this();
  window_->Claim(transfer_id_, this, [self](const absl::Status& verdict) {
    if (!self->Unpark()) {
      return;  // cancelled first
    }
    if (verdict.ok()) {
      self->TakeChunk();
    } else {
      self->End(verdict);
    }
  });
  // A cancellation that came before parking found nobody to wake.
  bool cancelled;
  {
    absl::MutexLock lock(&mutex_);
    cancelled = cancelled_;
  }
  if (cancelled && Unpark()) {
    End(GivenUp());
  } else if (cancelled) {
    window_->Abandon(transfer_id_, this, GivenUp());  // it may have ended before it claimed
  }
}

bool PushReceiver::Unpark() {
  absl::MutexLock lock(&mutex_);
  return std::exchange(parked_, false);
}

absl::Status PushReceiver::WriteChunk() {
  if (chunk_.transfer_id() != transfer_id_) {
    return absl::InvalidArgumentError(
        absl::StrCat("a PushKv stream carries one transfer; it began with ",
                     transfer_id_,
                     " and goes on with ",
                     chunk_.transfer_id()));
  }
  if (chunk_.payload().size() > kMaxChunkBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a chunk of ", chunk_.payload().size(), " bytes; the limit is ", kMaxChunkBytes));
  }
  if (chunk_.payload().empty() && !chunk_.has_total_bytes()) {
    return absl::InvalidArgumentError("a chunk without payload");
  }
  constexpr auto kMaxOffset = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  if (chunk_.offset() > kMaxOffset || chunk_.total_bytes() > kMaxOffset) {
    return absl::InvalidArgumentError("an offset or size above 2^63");
  }
  BATON_RETURN_IF_ERROR(window_->Write(transfer_id_,
                                       this,
                                       static_cast<int64_t>(chunk_.offset()),
                                       std::as_bytes(std::span(chunk_.payload()))));
  if (chunk_.has_total_bytes()) {
    return window_->Finish(transfer_id_, this, static_cast<int64_t>(chunk_.total_bytes()));
  }
  return absl::OkStatus();
}

void PushReceiver::TakeChunk() {
  const absl::Status status = WriteChunk();
  if (!status.ok() || chunk_.has_total_bytes()) {
    End(status);
    return;
  }
  StartRead(&chunk_);
}

void PushReceiver::End(const absl::Status& status) {
  if (window_ != nullptr) {
    window_->Abandon(transfer_id_, this, status);
  }
  ack_.set_transfer_id(transfer_id_);
  ack_.set_code(static_cast<int32_t>(status.code()));
  ack_.set_message(std::string(status.message()));
  StartWriteAndFinish(&ack_, grpc::WriteOptions(), grpc::Status::OK);
}

void PushReceiver::OnCancel() {
  {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
  }
  if (Unpark()) {
    End(GivenUp());
  }
}

void PushReceiver::OnDone() { const std::shared_ptr<PushReceiver> self = std::move(self_); }

}  // namespace baton::transport
