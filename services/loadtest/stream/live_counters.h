// What is going on right now, for the terminal.
#pragma once

#include <atomic>
#include <cstdint>

namespace baton::loadtest {

// Thread-safe.
struct LiveCounters {
  std::atomic<int64_t> sent = 0;
  std::atomic<int64_t> ended = 0;
  std::atomic<int64_t> succeeded = 0;
  std::atomic<int64_t> failed = 0;  // injected cancels left out
  std::atomic<int64_t> tokens = 0;
};

}  // namespace baton::loadtest
