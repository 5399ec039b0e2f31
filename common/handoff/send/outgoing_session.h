// One transfer attempt, as the sending side drives it.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "common/engine/request.h"
#include "common/handoff/send/peer_cache.h"
#include "common/handoff/send/segment_grouper.h"
#include "common/handoff/send/sender.h"
#include "common/kv/manifest/layout.h"
#include "common/kv/manifest/segment_header.h"

namespace baton::handoff {

class SenderCore;

// States: open -> (commit sent) -> ended, or failed -> ended. It ends when the engine has called
// Commit or Abort, the outcome is known, and nothing reads the pages any more: no post is open and
// the shipping thread is not inside. Thread-safe; nothing outside is called with the lock held,
// since a control stream of the same process may call back at once.
class OutgoingSession final : public ControlStreamEvents,
                              public std::enable_shared_from_this<OutgoingSession> {
 public:
  using Done = std::function<void(absl::Status, int64_t)>;

  OutgoingSession(std::shared_ptr<SenderCore> core, OutgoingTransfer transfer);

  // Asks for the peer, whose transport the manifest names; called once, first.
  void Start(std::unique_ptr<ControlStream> control, const std::vector<transport::Transport*>& own);

  // KvSink.
  bool ReadsDevices();
  void LayersReady(engine::ReadyKv ready);
  void Commit(engine::CommitInfo info, Done done);
  void Abort(absl::Status reason, std::function<void()> released);

  void OnMessage(const worker::v1::TransferResponse& message) override;
  void OnClosed(const absl::Status& status) override;
  void OnPostDone(uint64_t tag, const absl::Status& status);
  // Ships what is ready; called by the shipping thread only.
  void Work();
  void CheckDeadline(absl::Time now);
  // Remembers the first error, revokes open posts and cancels the control stream.
  void Fail(absl::Status status);
  // Lets go of the control stream; called by the shipping thread after the end.
  void DropControl();

 private:
  struct Outgoing {
    Segment segment;
    std::optional<uint64_t> checksum{};  // once it is known
  };

  // What decode or the way to it answered. That it is full, or late while the request has time
  // left, makes it lost (kUnavailable): this worker is not what is full, and decode may do better
  // at the next attempt, or another one where the KV is retained.
  absl::Status AtDecode(const absl::Status& status) const;
  // Why a post failed. A window that nothing may be written to any more has gone with its
  // reservation, which the control stream says with this reason, perhaps later.
  absl::Status PostFailure(const absl::Status& status) const;
  // After Commit: decode has so long from now on until it commits or takes another segment.
  void LimitSilence() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Check(const std::vector<transport::Transport*>& own) const;
  void SendManifest(std::string_view transport);
  void OnPeer(absl::StatusOr<std::shared_ptr<const Peer>> peer);
  // The next segment to ship; groups what LayersReady has queued. Null: nothing now.
  std::shared_ptr<Outgoing> NextSegment();
  absl::Status GroupWaiting() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether what the grouper has left is not to wait for more: there is none, or nothing is on its
  // way and it is encoded layers. While a segment is, the next one grows.
  bool RestIsDue() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // kResourceExhausted: nothing is sent; try again after a completion.
  absl::Status Ship(Outgoing& outgoing);
  void SendHeader(const Segment& segment, uint64_t checksum);
  absl::Status PostSegment(const Segment& segment, uint32_t segment_index);
  void SendCommitIfDue();
  int64_t segment_bytes(bool of_device) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether as much is on its way as may be when the next segment is to go: OnPostDone goes on.
  bool OutOfCredit() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EraseOpen(uint64_t tag) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Failed() ABSL_LOCKS_EXCLUDED(mutex_);
  std::shared_ptr<ControlStream> control() ABSL_LOCKS_EXCLUDED(mutex_);
  void EndIfDue();
  TransferReport MakeReport(const absl::Status& status) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<SenderCore> core_;
  const OutgoingTransfer transfer_;
  const absl::Time opened_;
  std::string window_;  // of the endpoint that is connected to; set before peer_
  kv::WindowGeometry geometry_;
  kv::WireFormat format_ = kv::WireFormat::kDense;

  absl::Mutex mutex_;
  std::shared_ptr<ControlStream> control_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const Peer> peer_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);  // the first error
  absl::Time deadline_ ABSL_GUARDED_BY(mutex_);
  std::deque<engine::ReadyKv> waiting_ ABSL_GUARDED_BY(mutex_);
  std::optional<SegmentGrouper> grouper_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<Outgoing>> segments_ ABSL_GUARDED_BY(mutex_);    // grouped, not posted
  std::unordered_map<uint64_t, int64_t> open_posts_ ABSL_GUARDED_BY(mutex_);  // bytes, by tag
  int64_t open_bytes_ ABSL_GUARDED_BY(mutex_) = 0;                            // of all of these
  std::vector<uint64_t> checksums_ ABSL_GUARDED_BY(mutex_);                   // by segment index
  int64_t payload_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t manifest_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<engine::CommitInfo> commit_ ABSL_GUARDED_BY(mutex_);
  Done done_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> released_ ABSL_GUARDED_BY(mutex_);
  bool commit_sent_ ABSL_GUARDED_BY(mutex_) = false;
  bool committed_ ABSL_GUARDED_BY(mutex_) = false;
  bool working_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace baton::handoff
