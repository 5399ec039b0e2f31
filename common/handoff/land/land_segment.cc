// A segment lands: its header says where its bytes may be written, the transport writes them there
// and tells the checksum of what is in place (common/transport/inbound_window.h).
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

#include "common/base/status_macros.h"
#include "common/engine/request.h"
#include "common/handoff/land/landing_core.h"  // IWYU pragma: keep
#include "common/handoff/land/transfer_session.h"
#include "common/kv/manifest/segment_header.h"
#include "common/transport/transport.h"

namespace baton::handoff {

absl::Status TransferSession::ExpectSegment(const std::string& header_bytes) {
  BATON_ASSIGN_OR_RETURN(const kv::SegmentHeader header,
                         kv::DecodeSegmentHeader(std::as_bytes(std::span(header_bytes))));
  BATON_ASSIGN_OR_RETURN(const uint32_t segment_index, ledger_->Announce(header));
  const uint64_t tag = core_->AddTag(shared_from_this(), segment_index);
  absl::Status status = reservation_->Expect(transport_,
                                             kv::TransferId(attempt_, segment_index),
                                             tag,
                                             ledger_->Runs(segment_index),
                                             header.checksum_type == kv::ChecksumType::kWordSum
                                                 ? transport::Checksum::kWordSum
                                                 : transport::Checksum::kXxh3);
  if (!status.ok()) {
    core_->DropTag(tag);
  }
  return status;
}

void TransferSession::TellPagesLanded(uint32_t segment_index) {
  const std::optional<engine::LandedPages> pages = ledger_->PagesOf(segment_index);
  if (!pages.has_value()) {
    return;
  }
  calls_.Add([core = core_,
              id = reservation_->id(),
              epoch = reservation_->epoch(),
              attempt = attempt_,
              pages = *pages] { core->engine().PagesLanded(id, epoch, attempt, pages); });
}

void TransferSession::TellHiddenLanded() {
  const int32_t pages = ledger_->hidden_landed();
  if (pages <= hidden_told_) {
    return;
  }
  hidden_told_ = pages;
  calls_.Add([core = core_,
              id = reservation_->id(),
              epoch = reservation_->epoch(),
              attempt = attempt_,
              pages] { core->engine().HiddenLanded(id, epoch, attempt, pages); });
}

void TransferSession::OnReceived(uint32_t segment_index, const transport::Completion& received) {
  if (absl::IsCancelled(received.status)) {
    return;  // given up by this side, which ends the session with the reason
  }
  {
    const absl::MutexLock lock(&mutex_);
    if (state_ != State::kLanding) {
      return;
    }
    absl::Status status = received.status;
    if (status.ok()) {
      status = ledger_->MarkLanded(segment_index, received.checksum);
    }
    if (status.ok()) {
      TellPagesLanded(segment_index);
      TellHiddenLanded();
      CommitIfLanded();
    } else {
      EndWith(std::move(status));
    }
  }
  calls_.Run();
}

}  // namespace baton::handoff
