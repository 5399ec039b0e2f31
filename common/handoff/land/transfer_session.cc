#include "common/handoff/land/transfer_session.h"

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

#include "common/base/status_macros.h"
#include "common/engine/request.h"
#include "common/handoff/land/commit_reader.h"
#include "common/handoff/land/landing_core.h"
#include "common/handoff/land/landing_reservation.h"
#include "common/handoff/land/landing_session.h"
#include "common/kv/manifest/layout.h"
#include "common/kv/manifest/reason.h"
#include "common/kv/manifest/segment_header.h"

namespace baton::handoff {
namespace {

absl::Status OutOfPlace() {
  return absl::InvalidArgumentError("a segment header or the commit must follow the manifest");
}

}  // namespace

TransferSession::TransferSession(std::shared_ptr<LandingCore> core,
                                 std::shared_ptr<LandingResponder> responder)
    : core_(std::move(core)), responder_(std::move(responder)) {}

void TransferSession::OnMessage(const worker::v1::TransferRequest& message) {
  {
    absl::MutexLock lock(&mutex_);
    if (absl::Status status = Handle(message); !status.ok()) {
      EndWith(std::move(status));
    }
  }
  calls_.Run();
}

absl::Status TransferSession::Handle(const worker::v1::TransferRequest& message) {
  switch (state_) {
    case State::kEnded:
      return absl::OkStatus();
    case State::kManifest:
      return HandleManifest(message);
    case State::kAttempt:
      return KeepEarly(message);
    case State::kCommitting:
      return absl::InvalidArgumentError("a message after the commit");
    case State::kLanding:
      break;
  }
  if (commit_.has_value()) {
    return absl::InvalidArgumentError("a message after the commit");
  }
  switch (message.message_case()) {
    case worker::v1::TransferRequest::kSegmentHeader:
      return ExpectSegment(message.segment_header());
    case worker::v1::TransferRequest::kCommit:
      return HandleCommit(message.commit());
    default:
      return OutOfPlace();
  }
}

// As many bytes as messages: headers have a size, and there is one commit.
absl::Status TransferSession::KeepEarly(const worker::v1::TransferRequest& message) {
  if (!early_.empty() && early_.back().has_commit()) {
    return absl::InvalidArgumentError("a message after the commit");
  }
  if (early_.size() > static_cast<size_t>(core_->options().max_segments)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("more than ", core_->options().max_segments, " segments in one attempt"));
  }
  if (message.has_segment_header()) {
    BATON_RETURN_IF_ERROR(
        kv::DecodeSegmentHeader(std::as_bytes(std::span(message.segment_header()))).status());
  } else if (!message.has_commit()) {
    return OutOfPlace();
  }
  early_.push_back(message);
  early_.back().DiscardUnknownFields();
  return absl::OkStatus();
}

absl::Status TransferSession::HandleManifest(const worker::v1::TransferRequest& message) {
  if (!message.has_manifest()) {
    return absl::InvalidArgumentError("the first message of a transfer must be its manifest");
  }
  const kv::v1::KvManifest& manifest = message.manifest();
  std::shared_ptr<LandingReservation> reservation = core_->Find(manifest.reservation_id());
  if (reservation == nullptr || reservation->epoch() != manifest.epoch()) {
    return kv::FailedPreconditionWithReason(
        kv::kStaleEpoch,
        absl::StrCat("reservation ",
                     manifest.reservation_id(),
                     " has ended or never existed with this epoch"));
  }
  BATON_RETURN_IF_ERROR(kv::CheckLayout(reservation->layout(), manifest.layout()));
  if (manifest.segment_header_version() != kv::SegmentHeader::kVersion) {
    return absl::FailedPreconditionError(absl::StrCat("segment header version ",
                                                      manifest.segment_header_version(),
                                                      "; this worker knows version ",
                                                      kv::SegmentHeader::kVersion));
  }
  const kv::WindowGeometry& geometry = reservation->geometry();
  if (manifest.prompt_tokens() != geometry.prompt_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("manifest of a prompt of ",
                                                   manifest.prompt_tokens(),
                                                   " tokens; reserved are ",
                                                   geometry.prompt_tokens));
  }
  if (manifest.attempt() == 0) {
    return absl::InvalidArgumentError("attempts are numbered from 1");
  }
  if (!reservation->has_transport(manifest.transport())) {
    return absl::FailedPreconditionError(absl::StrCat(
        "transport \"", manifest.transport(), "\" is not one of the reservation's endpoints"));
  }
  BATON_RETURN_IF_ERROR(reservation->CheckAttempt(manifest.attempt()));
  transport_ = manifest.transport();
  attempt_ = manifest.attempt();
  manifest_bytes_ = static_cast<int64_t>(manifest.ByteSizeLong());
  ledger_.emplace(manifest, geometry, core_->options().max_segments);
  reservation_ = std::move(reservation);
  state_ = State::kAttempt;
  calls_.Add([self = shared_from_this(),
              id = reservation_->id(),
              epoch = reservation_->epoch(),
              attempt = attempt_] {
    self->core_->engine().BeginAttempt(
        id, epoch, attempt, [self](absl::Status status) { self->OnAttempt(std::move(status)); });
  });
  return absl::OkStatus();
}

void TransferSession::OnAttempt(absl::Status status) {
  std::shared_ptr<LandingReservation> reservation;
  uint32_t attempt = 0;
  {
    absl::MutexLock lock(&mutex_);
    reservation = reservation_;
    attempt = attempt_;
  }
  if (status.ok()) {
    status = reservation->Adopt(shared_from_this(), attempt);
  }
  {
    absl::MutexLock lock(&mutex_);
    if (state_ != State::kAttempt) {
      return;
    }
    if (status.ok()) {
      state_ = State::kLanding;
      calls_.Add([responder = responder_] {
        worker::v1::TransferResponse response;
        response.mutable_accepted();
        responder->Send(std::move(response));
      });
    }
    while (status.ok() && !early_.empty()) {
      status = Handle(early_.front());
      early_.pop_front();
    }
    if (!status.ok()) {
      EndWith(std::move(status));
    }
  }
  calls_.Run();
}

absl::Status TransferSession::HandleCommit(const worker::v1::Commit& commit) {
  BATON_ASSIGN_OR_RETURN(const std::vector<int32_t> sent_pages,
                         reservation_->SentPages(commit.kv_state()));
  BATON_ASSIGN_OR_RETURN(engine::CommitInfo info, ReadCommit(commit));
  BATON_RETURN_IF_ERROR(ledger_->CheckCommit(commit, sent_pages));
  commit_ = std::move(info);
  commit_->kv_wire_bytes = ledger_->payload_bytes() +
                           ledger_->segments() * int64_t{kv::SegmentHeader::kBytes} +
                           manifest_bytes_;
  CommitIfLanded();
  return absl::OkStatus();
}

void TransferSession::CommitIfLanded() {
  if (!commit_.has_value() || !ledger_->all_landed()) {
    return;
  }
  state_ = State::kCommitting;
  calls_.Add([self = shared_from_this(),
              id = reservation_->id(),
              epoch = reservation_->epoch(),
              attempt = attempt_,
              info = *std::move(commit_)]() mutable {
    self->core_->engine().Commit(id, epoch, attempt, std::move(info), [self](absl::Status status) {
      self->OnCommitted(std::move(status));
    });
  });
  commit_.reset();
}

void TransferSession::OnCommitted(absl::Status status) {
  std::shared_ptr<LandingReservation> reservation;
  {
    absl::MutexLock lock(&mutex_);
    reservation = reservation_;
  }
  if (status.ok()) {
    // The pages belong to a running sequence now: nothing may be written any more.
    core_->Forget(reservation->id());
    reservation->Close(kv::FailedPreconditionWithReason(
        kv::kStaleEpoch, absl::StrCat("reservation ", reservation->id(), " was committed")));
  }
  {
    absl::MutexLock lock(&mutex_);
    if (state_ != State::kCommitting) {
      return;
    }
    if (status.ok()) {
      worker::v1::TransferResponse response;
      response.mutable_committed()->set_segments(static_cast<uint32_t>(ledger_->segments()));
      response.mutable_committed()->set_payload_bytes(
          static_cast<uint64_t>(ledger_->payload_bytes()));
      calls_.Add([responder = responder_, response] { responder->Send(response); });
    }
    EndWith(std::move(status));
  }
  calls_.Run();
}

void TransferSession::EndWith(absl::Status status) {
  if (state_ == State::kEnded) {
    return;
  }
  state_ = State::kEnded;
  early_.clear();
  calls_.Add([responder = responder_, status = std::move(status)] { responder->Finish(status); });
}

void TransferSession::OnClosed() {
  absl::MutexLock lock(&mutex_);
  state_ = State::kEnded;
  early_.clear();
}

void TransferSession::Fail(absl::Status status) {
  {
    absl::MutexLock lock(&mutex_);
    if (state_ == State::kCommitting) {
      return;  // the engine releases the reservation while it commits; its verdict ends the session
    }
    EndWith(std::move(status));
  }
  calls_.Run();
}

}  // namespace baton::handoff
