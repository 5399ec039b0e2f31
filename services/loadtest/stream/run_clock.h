// Time since the start of a run.
#pragma once

#include <chrono>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace baton::loadtest {

// A steady clock: it does not jump when the machine's time is set. Immutable and thread-safe.
class RunClock {
 public:
  RunClock() : wall_start_(absl::Now()), start_(std::chrono::steady_clock::now()) {}

  absl::Duration Elapsed() const {
    return absl::FromChrono(std::chrono::steady_clock::now() - start_);
  }
  absl::Time wall_start() const { return wall_start_; }

 private:
  const absl::Time wall_start_;
  const std::chrono::steady_clock::time_point start_;
};

}  // namespace baton::loadtest
