// When this process started.
#pragma once

namespace baton::metrics {

// Seconds since 1970, from /proc, with the resolution of the kernel's clock tick; the time of the
// first call where /proc does not tell. The same at every call. Thread-safe.
double ProcessStartSeconds();

}  // namespace baton::metrics
