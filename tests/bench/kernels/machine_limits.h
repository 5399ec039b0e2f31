// What this machine can do, measured in the same run as the kernels that are held against it.
#pragma once

#include "kernels/core/thread_pool.h"

namespace baton::kernels {

struct MachineLimits {
  double flops_per_second = 0.0;  // fp32 fused multiply-adds of the widest registers, 2 per lane
  double bytes_per_second = 0.0;  // reading an array four times the size of a large L2 cache
};

// Measures with every thread of the pool; takes about half a second.
MachineLimits MeasureMachine(ThreadPool& pool);

}  // namespace baton::kernels
