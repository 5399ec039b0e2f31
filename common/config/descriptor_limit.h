// How many descriptors a process may have open.
#pragma once

#include <sys/resource.h>

namespace baton::config {

// What limits are raised to. More makes programs slow that look at every possible descriptor.
inline constexpr rlim_t kEnoughDescriptors = 65536;

// Raises the soft limit of open descriptors to `enough`, or to the hard limit if that is less:
// every connection takes one, and many systems begin with 1,024. A higher limit stays, and any
// where the system refuses. Thread-safe.
void RaiseDescriptorLimit(rlim_t enough = kEnoughDescriptors);

}  // namespace baton::config
