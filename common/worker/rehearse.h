// Requests that a worker makes of itself before it serves.
#pragma once

#include "common/engine/engine.h"

namespace baton::worker {

// Computes prompts of all sizes that a device compiles for, and one in every KV format, and returns
// when all have ended. By the first request kernels are compiled and brought to the device, and
// launches recorded; it would wait for up to two seconds otherwise (docs/operations.md, "On a
// GPU"). What this engine can't do, such as a format whose defaults don't fit the model, is named
// in the log and left out: serving does not depend on it. Roles both and prefill, which take
// prompts; role decode has nothing to rehearse.
void Rehearse(engine::Engine& engine);

}  // namespace baton::worker
