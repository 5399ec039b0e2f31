// Progress on a terminal.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>

namespace baton::eval {

// The line shown after `done` of `total` cases, `correct` of them right.
std::string ProgressLine(int64_t done, int64_t total, int64_t correct);

// Redraws one line on stderr, only when stderr is a terminal. Thread-safe.
class ProgressBar {
 public:
  explicit ProgressBar(int64_t total);
  // Ends the line.
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // Counts one more case.
  void Advance(bool correct);

 private:
  const int64_t total_;
  const bool terminal_;
  std::mutex mutex_;
  int64_t done_ = 0;
  int64_t correct_ = 0;
};

}  // namespace baton::eval
