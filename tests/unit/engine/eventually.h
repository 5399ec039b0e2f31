// Waiting for an engine's own threads.
#pragma once

#include <functional>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace baton::engine {

// Polls; false after 30 s of real time.
inline bool Eventually(const std::function<bool()>& condition) {
  for (int i = 0; i < 30000; ++i) {
    if (condition()) {
      return true;
    }
    absl::SleepFor(absl::Milliseconds(1));
  }
  return false;
}

}  // namespace baton::engine
