#include "common/engine/engine_thread.h"

#include <algorithm>
#include <vector>

#include "absl/status/status.h"

#include "common/base/clock.h"
#include "common/engine/operations/operations.h"
#include "common/engine/page_plan.h"

namespace baton::engine {
namespace {

// Wakes at least this often, so that progress and gauges are fresh even without commands.
constexpr absl::Duration kMaxSleep = absl::Seconds(1);

}  // namespace

EngineThread::EngineThread(EngineState& state) : state_(state), thread_([this] { ThreadMain(); }) {}

EngineThread::~EngineThread() { Stop(); }

void EngineThread::Stop() {
  if (!thread_.joinable()) {
    return;
  }
  state_.parts.commands->PushAlways([](EngineState& state) { state.stopping = true; });
  thread_.join();
}

void EngineThread::ThreadMain() {
  const Clock& clock = *state_.parts.clock;
  PublishLoad(state_);
  while (!state_.stopping) {
    const absl::Time wake = std::min(NextExpiry(state_), clock.Now() + kMaxSleep);
    Round(state_.parts.commands->WaitAndTake(clock, wake));
  }
  ShutDown();
}

// What listeners do takes some ten microseconds for each sequence, calls into RPC above all, for
// which the device would wait: the next step goes before them.
void EngineThread::Round(std::vector<Command> commands) {
  for (Command& command : commands) {
    command(state_);
  }
  if (state_.step_in_flight) {
    TellListeners(state_);
  }
  ExpireRequests(state_);
  ReleaseEnded(state_);
  AdmitWaiting(state_);
  ScheduleStep(state_);
  TellListeners(state_);
  PublishLoad(state_);
}

void EngineThread::ShutDown() {
  const absl::Status reason = absl::UnavailableError("the engine shuts down; use another worker");
  const Clock& clock = Clock::Real();
  const absl::Time give_up = clock.Now() + kShutdownGrace;
  for (;;) {
    EndAllRequests(state_, reason);
    ReleaseEnded(state_);
    TellListeners(state_);
    const bool at_rest =
        !state_.step_in_flight &&
        std::ranges::all_of(state_.closing, [](const auto& request) { return request->at_rest(); });
    if (at_rest && (state_.closing.empty() || clock.Now() >= give_up)) {
      break;
    }
    for (Command& command : state_.parts.commands->WaitAndTake(clock, clock.Now() + kMaxSleep)) {
      command(state_);
    }
  }
  for (Command& command : state_.parts.commands->CloseAndTake()) {
    command(state_);
  }
  EndAllRequests(state_, reason);
  TellListeners(state_);
  for (const auto& request : state_.closing) {
    ReleaseSequences(*state_.parts.pool, *request);
  }
  state_.closing.clear();
  DropAllKept(state_);
  PublishLoad(state_);
}

}  // namespace baton::engine
