// What a signal does to a process that does not serve yet.
#pragma once

#include <thread>

#include "absl/synchronization/notification.h"

#include "common/rpc/shutdown_signal.h"

namespace baton::rpc {

// Ends the process at the first SIGTERM or SIGINT while it lives, with the status that the signal
// alone would have given: a model that loads for minutes is not waited for, and there is nothing to
// drain.
class EndAtSignal {
 public:
  // `signal` is borrowed; nobody else waits for it meanwhile.
  explicit EndAtSignal(ShutdownSignal* signal);
  ~EndAtSignal();
  EndAtSignal(const EndAtSignal&) = delete;
  EndAtSignal& operator=(const EndAtSignal&) = delete;

 private:
  void ThreadMain();

  ShutdownSignal* const signal_;
  absl::Notification over_;
  std::thread thread_;
};

}  // namespace baton::rpc
