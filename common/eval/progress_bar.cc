#include "common/eval/progress_bar.h"

#include <unistd.h>

#include <cstdio>

#include "absl/strings/str_cat.h"

namespace baton::eval {
namespace {

constexpr int64_t kBarWidth = 40;

}  // namespace

std::string ProgressLine(int64_t done, int64_t total, int64_t correct) {
  const int64_t filled = total == 0 ? kBarWidth : kBarWidth * done / total;
  return absl::StrCat("[",
                      std::string(static_cast<size_t>(filled), '#'),
                      std::string(static_cast<size_t>(kBarWidth - filled), '.'),
                      "] ",
                      done,
                      "/",
                      total,
                      " cases, ",
                      correct,
                      " correct");
}

ProgressBar::ProgressBar(int64_t total) : total_(total), terminal_(isatty(STDERR_FILENO) != 0) {}

ProgressBar::~ProgressBar() {
  if (terminal_ && done_ > 0) {
    std::fputc('\n', stderr);
  }
}

void ProgressBar::Advance(bool correct) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++done_;
  correct_ += correct ? 1 : 0;
  if (terminal_) {
    std::fprintf(stderr, "\r%s", ProgressLine(done_, total_, correct_).c_str());
  }
}

}  // namespace baton::eval
