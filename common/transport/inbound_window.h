// The receiving half of a one-sided transport that copies: which bytes may be written where.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

#include "common/base/xxh3.h"
#include "common/transport/completion_queue.h"
#include "common/transport/transport.h"
#include "kernels/core/landing_memory.h"

namespace baton::transport {

// Registered memory and the transfers announced for it. A transfer is written by one stream, in
// order of its announced runs, each byte once: neither a stale attempt nor a broken peer can touch
// a byte that has already landed. Thread-safe; the copy happens under the window's lock, so that
// Withdraw and CancelTransfers wait for a copy in progress. Callbacks run without the lock.
class InboundWindow {
 public:
  // Called once: OK when the transfer may be written, else why not.
  using Ready = std::function<void(absl::Status)>;
  // Streams that may wait for their announcement.
  static constexpr size_t kMaxWaiters = 4096;

  // `memory`, by which the extents are reached, is borrowed.
  InboundWindow(const std::vector<std::span<std::byte>>& extents,
                kernels::LandingMemory& memory,
                std::shared_ptr<CompletionQueue> completions);

  int64_t size_bytes() const { return size_bytes_; }

  // Transport::Expect. kInvalidArgument for runs outside the window, kAlreadyExists for a transfer
  // id that was used before, kFailedPrecondition after Withdraw.
  absl::Status Announce(const ExpectParams& params);

  // Claims the transfer for the stream `owner`; `ready` runs inside the call when the transfer has
  // been announced or is refused, else later from the thread that announces or withdraws.
  void Claim(uint64_t transfer_id, const void* owner, Ready ready);
  // Copies the transfer's next bytes to [offset, offset + bytes.size()).
  absl::Status Write(uint64_t transfer_id,
                     const void* owner,
                     int64_t offset,
                     std::span<const std::byte> bytes);
  // The same from a device's memory that the window's memory has imported: `bytes` are read until
  // the transfer has ended. kFailedPrecondition where the checksum is one that the host computes.
  absl::Status Pull(uint64_t transfer_id,
                    const void* owner,
                    int64_t offset,
                    std::span<const std::byte> bytes);
  // The sender says that this was all; OK when every announced byte is in place.
  absl::Status Finish(uint64_t transfer_id, const void* owner, int64_t total_bytes);
  // The stream is gone: a transfer that it had not finished completes with `reason`; a waiting
  // `ready` is dropped.
  void Abandon(uint64_t transfer_id, const void* owner, const absl::Status& reason);

  // Whether the stream may still write the transfer.
  bool IsOpen(uint64_t transfer_id, const void* owner);

  void CancelTransfers();
  // Refuses everything from now on. Idempotent.
  void Withdraw();

 private:
  struct Transfer {
    std::vector<ReceiveRun> runs;  // neighbours merged
    uint64_t tag = 0;
    const void* owner = nullptr;
    size_t run_index = 0;     // the run being written
    int64_t run_written = 0;  // bytes of it in place
    int64_t total_bytes = 0;
    int64_t written_bytes = 0;
    Checksum kind = Checksum::kXxh3;
    std::unique_ptr<Xxh3Stream> checksum{};  // of these, if it is that kind; null before any
    bool ended = false;
  };
  struct Waiter {
    const void* owner = nullptr;
    Ready ready;
  };

  absl::Status CheckRuns(const std::vector<ReceiveRun>& runs) const;
  absl::Status ClaimAnnounced(uint64_t transfer_id, const void* owner)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Transfer*> FindOwned(uint64_t transfer_id, const void* owner)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // When it returns nothing of the transfer is under way. The status that the transfer ends with.
  absl::Status End(Transfer& transfer, absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ends a transfer whose sender broke the rules.
  absl::Status Refuse(Transfer& transfer, const std::string& message)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The transfer, whose next bytes are `size` at `offset` and count as written from now on; it is
  // ended if they can't be.
  absl::StatusOr<Transfer*> Advance(uint64_t transfer_id,
                                    const void* owner,
                                    int64_t offset,
                                    size_t size) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The parts of the extents, in order, that bytes [offset, offset + size) of the window are.
  std::vector<std::span<std::byte>> Places(int64_t offset, size_t size) const;
  // And adds the bytes to the checksum.
  absl::Status Copy(int64_t offset, std::span<const std::byte> bytes, Xxh3Stream* checksum)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of a transfer whose bytes have all been written or pulled; waits for them.
  absl::StatusOr<uint64_t> SumUp(const Transfer& transfer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::vector<std::span<std::byte>> extents_;  // neighbours joined
  kernels::LandingMemory& memory_;
  std::vector<int64_t> extent_begin_;  // offset of each extent in the window
  int64_t size_bytes_ = 0;
  const std::shared_ptr<CompletionQueue> completions_;

  absl::Mutex mutex_;
  bool withdrawn_ ABSL_GUARDED_BY(mutex_) = false;
  std::unordered_map<uint64_t, Transfer> transfers_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, Waiter> waiters_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::transport
