// The landing side of one attempt.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

#include "common/engine/request.h"
#include "common/handoff/land/landing_reservation.h"
#include "common/handoff/land/landing_session.h"
#include "common/handoff/land/segment_ledger.h"
#include "common/handoff/land/serial_calls.h"

namespace baton::handoff {

class LandingCore;

// manifest -> (engine accepts the attempt) -> segment headers, whose payloads land meanwhile ->
// commit -> (all landed) -> (engine commits) -> end. Every step checks the state under the lock;
// engine and responder are called through calls_, without it.
class TransferSession final : public LandingSession,
                              public std::enable_shared_from_this<TransferSession> {
 public:
  TransferSession(std::shared_ptr<LandingCore> core, std::shared_ptr<LandingResponder> responder);

  void OnMessage(const worker::v1::TransferRequest& message) override;
  void OnClosed() override;

  // A payload is in place (or will not be); called by the progress thread (land_segment.cc).
  void OnReceived(uint32_t segment_index, const transport::Completion& received);
  // Ends the session with an error answer, unless the engine is committing it: then its verdict
  // does.
  void Fail(absl::Status status);

 private:
  enum class State { kManifest, kAttempt, kLanding, kCommitting, kEnded };

  absl::Status Handle(const worker::v1::TransferRequest& message)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What comes while the engine is asked for the attempt, for OnAttempt.
  absl::Status KeepEarly(const worker::v1::TransferRequest& message)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status HandleManifest(const worker::v1::TransferRequest& message)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Lets the transport write the payload of this header (land_segment.cc).
  absl::Status ExpectSegment(const std::string& header_bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Tells the engine that a segment's pages have landed (land_segment.cc).
  void TellPagesLanded(uint32_t segment_index) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Tells the engine how many pages of hidden states have landed, if it is more than before
  // (land_segment.cc).
  void TellHiddenLanded() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status HandleCommit(const worker::v1::Commit& commit) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CommitIfLanded() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndWith(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnAttempt(absl::Status status);
  void OnCommitted(absl::Status status);

  const std::shared_ptr<LandingCore> core_;
  const std::shared_ptr<LandingResponder> responder_;
  SerialCalls calls_;

  absl::Mutex mutex_;
  State state_ ABSL_GUARDED_BY(mutex_) = State::kManifest;
  std::shared_ptr<LandingReservation> reservation_ ABSL_GUARDED_BY(mutex_);
  std::string transport_ ABSL_GUARDED_BY(mutex_);
  uint32_t attempt_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t manifest_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<SegmentLedger> ledger_ ABSL_GUARDED_BY(mutex_);
  int32_t hidden_told_ ABSL_GUARDED_BY(mutex_) = 0;  // pages that the engine knows of
  std::deque<worker::v1::TransferRequest> early_ ABSL_GUARDED_BY(mutex_);  // before acceptance
  std::optional<engine::CommitInfo> commit_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::handoff
