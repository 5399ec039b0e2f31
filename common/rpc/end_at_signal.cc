#include "common/rpc/end_at_signal.h"

#include <unistd.h>

#include <csignal>

#include "absl/time/time.h"
#include "spdlog/spdlog.h"

#include "common/rpc/shutdown_signal.h"

namespace baton::rpc {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(50);
constexpr int kStatus = 128 + SIGTERM;

}  // namespace

EndAtSignal::EndAtSignal(ShutdownSignal* signal)
    : signal_(signal), thread_([this] { ThreadMain(); }) {}

EndAtSignal::~EndAtSignal() {
  over_.Notify();
  thread_.join();
}

// Without destructors: other threads are at work on what they would destroy.
void EndAtSignal::ThreadMain() {
  while (!over_.HasBeenNotified()) {
    if (signal_->WaitFor(kPoll)) {
      spdlog::info("ended by a signal before it served");
      spdlog::default_logger()->flush();
      _exit(kStatus);
    }
  }
}

}  // namespace baton::rpc
