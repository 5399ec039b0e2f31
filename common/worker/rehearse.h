// Requests that a worker makes of itself before it serves.
#pragma once

#include "common/engine/engine.h"

namespace baton::worker {

// Computes prompts of a device's kernel sizes, and one in every KV format, and returns when all
// have ended and nothing of them is held: kernels are compiled and brought to the device, and
// launches recorded, when the first request comes, which would wait for up to two seconds otherwise
// (docs/operations.md, "Start"). What this engine can't do, such as a format whose defaults don't
// fit the model, is named in the log and left out: serving does not depend on it. Roles both and
// prefill, which take prompts; role decode has nothing to rehearse.
void Rehearse(engine::Engine& engine);

}  // namespace baton::worker
