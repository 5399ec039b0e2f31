// The engine thread: commands, schedule, retire, round after round.
#pragma once

#include <thread>

#include "absl/time/time.h"

#include "common/engine/engine_state.h"

namespace baton::engine {

// Starts the thread; Stop, or the destructor, ends every request with kUnavailable, waits for the
// step in flight, for copies from a device, and (up to kShutdownGrace) for sinks that still read,
// and joins.
class EngineThread {
 public:
  // How long a sink may delay shutdown. A slower one keeps the pool's memory alive through its
  // callback, so nothing is read after it was freed.
  static constexpr absl::Duration kShutdownGrace = absl::Seconds(10);

  // `state` is borrowed and touched by no other thread from now on.
  explicit EngineThread(EngineState& state);
  ~EngineThread();
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;

  void Stop();

 private:
  void ThreadMain();
  // One round: run commands, expire, release, admit, schedule, publish.
  void Round(std::vector<Command> commands);
  void ShutDown();

  EngineState& state_;
  std::thread thread_;
};

}  // namespace baton::engine
