// Tells a prefill worker that a request has ended.
#pragma once

#include <memory>
#include <string>

#include "services/router/workers/worker.h"

namespace baton::router {

// Prefill.Release, without waiting for the answer. A worker that can't be reached is asked again,
// until its lease on the KV has run out. Thread-safe.
void ReleaseKv(const std::shared_ptr<Worker>& worker, const std::string& request_id);

}  // namespace baton::router
