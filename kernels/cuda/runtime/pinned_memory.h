// Memory of the host that the device copies from and to by itself.
#pragma once

#include "kernels/core/memory.h"

namespace baton::kernels::cuda {

// Page-locked blocks. Taking one takes about a second for every few GiB, so they are taken when a
// process starts. Lives as long as the process; thread-safe.
MemorySpace& PinnedMemory();

}  // namespace baton::kernels::cuda
