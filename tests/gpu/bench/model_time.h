// Times of the host's clock.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/base/status_macros.h"

namespace baton::model {

// Starts when it is made.
class Stopwatch {
 public:
  double Seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

// Seconds of one call of `run`, which returns an absl::Status: the median of so many, the middle of
// two where there is no single one, after calls that only warm up.
template <typename Run>
absl::StatusOr<double> MedianSeconds(int32_t warm_ups, int32_t calls, const Run& run) {
  std::vector<double> seconds;
  for (int32_t call = 0; call < warm_ups + calls; ++call) {
    const Stopwatch watch;
    BATON_RETURN_IF_ERROR(run());
    if (call >= warm_ups) {
      seconds.push_back(watch.Seconds());
    }
  }
  std::sort(seconds.begin(), seconds.end());
  return (seconds[(seconds.size() - 1) / 2] + seconds[seconds.size() / 2]) / 2.0;
}

}  // namespace baton::model
