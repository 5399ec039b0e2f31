// What a connection to a decode worker carries, and how much is given to it at once.
#pragma once

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace baton::handoff {

// An estimate of a connection's bytes per second from the posts that have completed on it. Only
// time in which a post was open counts, so that a prompt that is computed slowly makes no link
// slow. Thread-safe.
class LinkRate {
 public:
  // The time over which a change of the link shows.
  static constexpr absl::Duration kMemory = absl::Milliseconds(500);
  // Fewer bytes than these in one go say more about delays than about the rate.
  static constexpr int64_t kLeastBytes = int64_t{256} << 10;

  void Began(absl::Time now);
  // A post that began has ended, `bytes` of it at the other side.
  void Ended(int64_t bytes, absl::Time now);
  // 0 while nothing is known.
  double bytes_per_second() const;

 private:
  mutable absl::Mutex mutex_;
  int open_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time since_ ABSL_GUARDED_BY(mutex_);   // of what is counted
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // that arrived since
  double rate_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Bytes of a segment: what the link carries in 2 ms. A segment costs 0.1 to 0.2 ms beside its bytes
// (docs/benchmarks.md, Hand-offs on one machine), and the last one of a prompt is waited for.
// Between 256 KiB and 64 MiB; 8 MiB where the rate is not known.
int64_t SegmentBytes(double bytes_per_second);

// Bytes of a segment that goes from device to device: 2 ms of PCIe, 0.2 ms of NVLink, where an
// estimate would need many prompts to get there.
inline constexpr int64_t kDeviceSegmentBytes = int64_t{64} << 20;

// Segments of one transfer that may be on their way in any case.
inline constexpr int64_t kLeastCreditSegments = 4;

// Bytes of one transfer that may be on their way: what the link carries in 50 ms, at least four
// segments. More would keep the link no busier, and other transfers would wait behind it.
int64_t CreditBytes(double bytes_per_second);

}  // namespace baton::handoff
