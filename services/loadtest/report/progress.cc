#include "services/loadtest/report/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"

#include "services/loadtest/stream/live_counters.h"

namespace baton::loadtest {
namespace {

constexpr absl::Duration kTerminalInterval = absl::Milliseconds(500);
constexpr absl::Duration kLogInterval = absl::Seconds(10);

// Of time or requests, whichever is further; negative where neither is known.
double ShareDone(const ProgressGoal& goal, absl::Duration elapsed, int64_t ended) {
  double share = -1.0;
  if (goal.duration != absl::InfiniteDuration()) {
    share = absl::FDivDuration(elapsed, goal.duration);
  }
  if (goal.requests > 0) {
    share = std::max(share, static_cast<double>(ended) / static_cast<double>(goal.requests));
  }
  return std::min(share, 1.0);
}

}  // namespace

std::string ProgressText(const ProgressGoal& goal,
                         absl::Duration elapsed,
                         const LiveCounters& counters,
                         double tokens_per_second) {
  const int64_t sent = counters.sent;
  const int64_t succeeded = counters.succeeded;
  const int64_t ended = counters.ended;
  std::string text;
  if (const double share = ShareDone(goal, elapsed, ended); share >= 0.0) {
    text = absl::StrFormat("%3.0f %%  ", 100 * share);
  }
  absl::StrAppendFormat(&text,
                        "%.1f s  sent %d  open %d  done %d  failed %d  %.0f tokens/s",
                        absl::ToDoubleSeconds(elapsed),
                        sent,
                        sent - ended,
                        succeeded,
                        counters.failed.load(),
                        tokens_per_second);
  return text;
}

Progress::Progress(const ProgressGoal& goal) : goal_(goal), terminal_(isatty(STDERR_FILENO) != 0) {}

Progress::~Progress() {
  if (terminal_ && shown_) {
    std::fputc('\n', stderr);
  }
}

void Progress::Show(absl::Duration elapsed, const LiveCounters& counters) {
  const absl::Duration since = elapsed - last_shown_;
  if (since < (terminal_ ? kTerminalInterval : kLogInterval)) {
    return;
  }
  const int64_t tokens = counters.tokens;
  const double rate = static_cast<double>(tokens - last_tokens_) / absl::ToDoubleSeconds(since);
  const std::string text = ProgressText(goal_, elapsed, counters, rate);
  std::fprintf(stderr, terminal_ ? "\r%s\x1b[K" : "%s\n", text.c_str());
  std::fflush(stderr);
  last_shown_ = elapsed;
  last_tokens_ = tokens;
  shown_ = true;
}

}  // namespace baton::loadtest
