#include "common/rpc/shutdown_signal.h"

#include <pthread.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <ctime>

#include "absl/time/clock.h"

namespace baton::rpc {
namespace {

sigset_t HandledSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

}  // namespace

ShutdownSignal::ShutdownSignal() {
  const sigset_t signals = HandledSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  // A peer that goes away while we write is an error of that write, not the end of the process.
  std::signal(SIGPIPE, SIG_IGN);
}

bool ShutdownSignal::WaitFor(absl::Duration timeout) {
  const sigset_t signals = HandledSignals();
  const absl::Time deadline = absl::Now() + timeout;
  while (true) {
    const absl::Duration left =
        std::clamp(deadline - absl::Now(), absl::ZeroDuration(), absl::Hours(1));
    const timespec wait = absl::ToTimespec(left);
    if (sigtimedwait(&signals, nullptr, &wait) > 0) {
      return true;
    }
    if (absl::Now() >= deadline) {
      return false;
    }
  }
}

}  // namespace baton::rpc
