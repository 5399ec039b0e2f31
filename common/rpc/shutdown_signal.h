// SIGTERM and SIGINT as something that a thread can wait for.
#pragma once

#include "absl/time/time.h"

namespace baton::rpc {

// Takes both signals out of their default handling for the whole process. Make it first in main,
// before any thread starts: threads inherit the blocked mask.
class ShutdownSignal {
 public:
  ShutdownSignal();

  // Waits until a signal arrives (true) or `timeout` passes (false). Every signal is reported once:
  // a second call tells that the operator is impatient.
  bool WaitFor(absl::Duration timeout);
};

}  // namespace baton::rpc
