#include "common/worker/run_worker.h"

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "spdlog/spdlog.h"

namespace baton::worker {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(50);

}  // namespace

void RunUntilSignal(Worker& worker, rpc::ShutdownSignal& signal) {
  while (!signal.WaitFor(absl::Hours(1))) {
  }
  worker.Drain();
  const absl::Time deadline = absl::Now() + worker.options().drain_timeout;
  while (!worker.idle()) {
    if (absl::Now() >= deadline) {
      spdlog::warn("drain timeout passed; ending what still runs");
      return;
    }
    if (signal.WaitFor(kPoll)) {
      spdlog::warn("second signal; ending what still runs");
      return;
    }
  }
}

}  // namespace baton::worker
