#include "common/handoff/send/link_rate.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace baton::handoff {
namespace {

constexpr double kSegmentSeconds = 0.002;
constexpr double kCreditSeconds = 0.05;
constexpr int64_t kLeastSegment = int64_t{256} << 10;
constexpr int64_t kMostSegment = int64_t{64} << 20;
constexpr int64_t kSegmentOfUnknownLink = int64_t{8} << 20;
constexpr double kMostCredit = 1e12;  // so that the product fits

}  // namespace

void LinkRate::Began(absl::Time now) {
  const absl::MutexLock lock(&mutex_);
  if (open_++ == 0) {
    since_ = now;
    bytes_ = 0;
  }
}

void LinkRate::Ended(int64_t bytes, absl::Time now) {
  const absl::MutexLock lock(&mutex_);
  --open_;
  bytes_ += bytes;
  const double seconds = absl::ToDoubleSeconds(now - since_);
  if (bytes_ < kLeastBytes || seconds <= 0) {
    return;
  }
  const double sample = static_cast<double>(bytes_) / seconds;
  const double old = rate_ > 0 ? std::exp(-seconds / absl::ToDoubleSeconds(kMemory)) : 0;
  rate_ = old * rate_ + (1 - old) * sample;
  since_ = now;
  bytes_ = 0;
}

double LinkRate::bytes_per_second() const {
  const absl::MutexLock lock(&mutex_);
  return rate_;
}

int64_t SegmentBytes(double bytes_per_second) {
  if (bytes_per_second <= 0) {
    return kSegmentOfUnknownLink;
  }
  const double bytes = std::clamp(bytes_per_second * kSegmentSeconds,
                                  static_cast<double>(kLeastSegment),
                                  static_cast<double>(kMostSegment));
  return static_cast<int64_t>(bytes);
}

int64_t CreditBytes(double bytes_per_second) {
  const double bytes = std::clamp(bytes_per_second * kCreditSeconds, 0.0, kMostCredit);
  return std::max(static_cast<int64_t>(bytes),
                  kLeastCreditSegments * SegmentBytes(bytes_per_second));
}

}  // namespace baton::handoff
