#include "common/handoff/send/outgoing_session.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"

#include "common/base/status_context.h"
#include "common/base/status_macros.h"
#include "common/engine/kv_sink.h"
#include "common/engine/request.h"
#include "common/handoff/send/control_stream.h"
#include "common/handoff/send/peer_cache.h"
#include "common/handoff/send/sender.h"
#include "common/handoff/send/sender_core.h"
#include "common/kv/manifest/layout.h"
#include "common/kv/manifest/reason.h"
#include "common/kv/manifest/segment_header.h"
#include "common/transport/transport.h"

namespace baton::handoff {
namespace {

std::vector<worker::v1::TransportEndpoint> Endpoints(const worker::v1::Reserved& reserved) {
  return {reserved.endpoints().begin(), reserved.endpoints().end()};
}

}  // namespace

OutgoingSession::OutgoingSession(std::shared_ptr<SenderCore> core, OutgoingTransfer transfer)
    : core_(std::move(core)),
      transfer_(std::move(transfer)),
      opened_(absl::Now()),
      deadline_(transfer_.deadline) {}

absl::Status OutgoingSession::Check(const std::vector<transport::Transport*>& own) const {
  const worker::v1::Reserved& reserved = transfer_.reserved;
  BATON_RETURN_IF_ERROR(kv::CheckLayout(transfer_.layout, reserved.layout()));
  if (reserved.pages_per_layer() != geometry_.pages_per_layer ||
      reserved.hidden_pages() != geometry_.hidden_pages) {
    return absl::FailedPreconditionError(absl::StrCat("decode reserved ",
                                                      reserved.pages_per_layer(),
                                                      " pages per layer and ",
                                                      reserved.hidden_pages(),
                                                      " of hidden states; the prompt has ",
                                                      geometry_.pages_per_layer,
                                                      " and ",
                                                      geometry_.hidden_pages));
  }
  if (!kv::WireFormatNamed(transfer_.layout.format()).has_value()) {
    return absl::InternalError(
        absl::StrCat("KV format ", transfer_.layout.format(), " has no number on the wire"));
  }
  return CheckOffers(reserved.control_address(), Endpoints(reserved), own);
}

void OutgoingSession::Start(std::unique_ptr<ControlStream> control,
                            const std::vector<transport::Transport*>& own) {
  const absl::StatusOr<kv::WindowGeometry> geometry =
      kv::MakeWindowGeometry(transfer_.layout, transfer_.prompt_tokens, transfer_.pages);
  absl::Status status = geometry.status();
  if (geometry.ok()) {
    geometry_ = *geometry;
    status = Check(own);
  }
  if (!status.ok()) {
    Fail(std::move(status));
    return;
  }
  format_ = *kv::WireFormatNamed(transfer_.layout.format());
  {
    absl::MutexLock lock(&mutex_);
    grouper_.emplace(geometry_);
    control_ = std::move(control);
  }
  this->control()->Start(shared_from_this());
  core_->peers().Get(transfer_.reserved.control_address(),
                     Endpoints(transfer_.reserved),
                     [self = shared_from_this()](absl::StatusOr<std::shared_ptr<const Peer>> peer) {
                       self->OnPeer(std::move(peer));
                     });
}

void OutgoingSession::SendManifest(std::string_view transport) {
  worker::v1::TransferRequest request;
  kv::v1::KvManifest& manifest = *request.mutable_manifest();
  manifest.set_request_id(transfer_.request_id);
  manifest.set_reservation_id(transfer_.reserved.reservation_id());
  manifest.set_epoch(transfer_.reserved.epoch());
  manifest.set_attempt(transfer_.attempt);
  *manifest.mutable_layout() = transfer_.layout;
  manifest.set_prompt_tokens(static_cast<uint32_t>(transfer_.prompt_tokens));
  manifest.set_segment_header_version(kv::SegmentHeader::kVersion);
  manifest.set_transport(std::string(transport));
  {
    absl::MutexLock lock(&mutex_);
    manifest_bytes_ = static_cast<int64_t>(manifest.ByteSizeLong());
  }
  if (const auto stream = control(); stream != nullptr) {
    stream->Send(std::move(request));
  }
}

void OutgoingSession::OnPeer(absl::StatusOr<std::shared_ptr<const Peer>> peer) {
  if (!peer.ok()) {
    Fail(AtDecode(peer.status()));
    return;
  }
  const std::vector<worker::v1::TransportEndpoint> endpoints = Endpoints(transfer_.reserved);
  const worker::v1::TransportEndpoint* const endpoint =
      FindEndpoint(endpoints, *(*peer)->transport);
  if (endpoint == nullptr) {
    Fail(absl::InternalError("the connection's transport is not one of the reservation's"));
    return;
  }
  SendManifest(endpoint->transport());
  {
    absl::MutexLock lock(&mutex_);
    window_ = endpoint->window();
    peer_ = *std::move(peer);
  }
  core_->Schedule(shared_from_this());
}

// Not known before the peer is: its first requests go over host memory.
bool OutgoingSession::ReadsDevices() {
  absl::MutexLock lock(&mutex_);
  return peer_ != nullptr && peer_->connection->reads_devices();
}

void OutgoingSession::LayersReady(engine::ReadyKv ready) {
  bool too_many = false;
  {
    absl::MutexLock lock(&mutex_);
    if (!status_.ok()) {
      return;
    }
    too_many = waiting_.size() >= static_cast<size_t>(core_->options().max_waiting_groups);
    if (!too_many) {
      waiting_.push_back(std::move(ready));
    }
  }
  if (too_many) {
    Fail(absl::UnavailableError(absl::StrCat("decode takes too little: ",
                                             core_->options().max_waiting_groups,
                                             " groups of layers wait to be shipped already")));
    return;
  }
  core_->Schedule(shared_from_this());
}

void OutgoingSession::Commit(engine::CommitInfo info, Done done) {
  {
    absl::MutexLock lock(&mutex_);
    commit_ = std::move(info);
    done_ = std::move(done);
    LimitSilence();
  }
  core_->Schedule(shared_from_this());
  EndIfDue();
}

absl::Status OutgoingSession::PostFailure(const absl::Status& status) const {
  return absl::IsFailedPrecondition(status)
             ? kv::FailedPreconditionWithReason(kv::kStaleEpoch, std::string(status.message()))
             : AtDecode(status);
}

void OutgoingSession::LimitSilence() {
  if (commit_.has_value() && status_.ok()) {
    deadline_ = std::min(transfer_.deadline, absl::Now() + core_->options().commit_timeout);
  }
}

void OutgoingSession::Abort(absl::Status reason, std::function<void()> released) {
  {
    absl::MutexLock lock(&mutex_);
    released_ = std::move(released);
  }
  Fail(reason.ok() ? absl::CancelledError("the request ended before its hand-off")
                   : std::move(reason));
  EndIfDue();
}

void OutgoingSession::OnMessage(const worker::v1::TransferResponse& message) {
  if (!message.has_committed()) {
    return;
  }
  bool early = false;
  {
    absl::MutexLock lock(&mutex_);
    early = !commit_sent_;
    committed_ = committed_ || (commit_sent_ && status_.ok());
  }
  if (early) {
    Fail(absl::InternalError("decode answered `committed` before the commit was sent"));
    return;
  }
  EndIfDue();
}

void OutgoingSession::OnClosed(const absl::Status& status) {
  {
    absl::MutexLock lock(&mutex_);
    if (committed_) {
      return;
    }
  }
  Fail(status.ok() ? absl::UnavailableError("decode ended the transfer without committing it")
                   : AtDecode(status));
}

void OutgoingSession::OnPostDone(uint64_t tag, const absl::Status& status) {
  std::shared_ptr<const Peer> peer;
  bool more = false;
  {
    absl::MutexLock lock(&mutex_);
    EraseOpen(tag);
    if (status.ok()) {
      LimitSilence();
    }
    peer = peer_;
    more = status.ok() && (!segments_.empty() || grouper_->rest_is_encoded());
  }
  if (more) {
    core_->Schedule(shared_from_this());  // it may have waited for credit, or for the link
  }
  if (!status.ok()) {
    if (absl::IsUnavailable(status)) {
      core_->peers().Drop(transfer_.reserved.control_address(), peer);
    }
    Fail(
        WithContext(PostFailure(status), "shipping KV to " + transfer_.reserved.control_address()));
  }
  EndIfDue();
}

void OutgoingSession::CheckDeadline(absl::Time now) {
  {
    absl::MutexLock lock(&mutex_);
    if (ended_ || now < deadline_) {
      return;
    }
    deadline_ = absl::InfiniteFuture();
  }
  Fail(AtDecode(absl::DeadlineExceededError("decode did not commit the hand-off in time")));
}

absl::Status OutgoingSession::AtDecode(const absl::Status& status) const {
  const bool late = absl::IsDeadlineExceeded(status) && absl::Now() < transfer_.deadline;
  // A reason that leads the message is decode's: it must not be read as this worker's own.
  return late || absl::IsResourceExhausted(status)
             ? absl::UnavailableError(absl::StrCat("decode: ", status.message()))
             : status;
}

void OutgoingSession::Fail(absl::Status status) {
  std::vector<uint64_t> tags;
  std::shared_ptr<ControlStream> control;
  absl::Status early;
  {
    absl::MutexLock lock(&mutex_);
    if (!status_.ok() || ended_) {
      return;
    }
    if (!commit_.has_value() && released_ == nullptr) {
      early = status;
    }
    for (const auto& [tag, bytes] : open_posts_) {
      tags.push_back(tag);
    }
    // What decode has committed stays committed; only the posts' acks are not waited for any
    // longer.
    if (!committed_) {
      status_ = std::move(status);
      control = control_;
    }
    waiting_.clear();
    segments_.clear();
  }
  if (control != nullptr) {
    control->Cancel();
  }
  core_->CancelPosts(tags);
  if (!early.ok() && transfer_.failed_early) {
    transfer_.failed_early(early);
  }
  EndIfDue();
}

std::shared_ptr<ControlStream> OutgoingSession::control() {
  absl::MutexLock lock(&mutex_);
  return control_;
}

void OutgoingSession::DropControl() {
  std::shared_ptr<ControlStream> control;
  absl::MutexLock lock(&mutex_);
  control.swap(control_);
}

TransferReport OutgoingSession::MakeReport(const absl::Status& status) const {
  const auto segments = static_cast<int64_t>(checksums_.size());
  TransferReport report;
  report.request_id = transfer_.request_id;
  report.status = status;
  if (peer_ != nullptr) {
    report.carrier = std::string(peer_->connection->carrier());
  }
  report.payload_bytes = payload_bytes_;
  report.segments = segments;
  report.wire_bytes =
      payload_bytes_ + segments * int64_t{kv::SegmentHeader::kBytes} + manifest_bytes_;
  report.duration = absl::Now() - opened_;
  return report;
}

void OutgoingSession::EndIfDue() {
  Done done;
  std::function<void()> released;
  TransferReport report;
  {
    absl::MutexLock lock(&mutex_);
    const bool outcome_known = committed_ || !status_.ok();
    const bool engine_waits = done_ != nullptr || released_ != nullptr;
    if (ended_ || working_ || !open_posts_.empty() || !outcome_known || !engine_waits) {
      return;
    }
    ended_ = true;
    done.swap(done_);
    released.swap(released_);
    report = MakeReport(status_);
  }
  if (transfer_.report) {
    transfer_.report(report);
  }
  if (done) {
    done(report.status, report.wire_bytes);
  }
  if (released) {
    released();
  }
  core_->Retire(shared_from_this());
}

}  // namespace baton::handoff
