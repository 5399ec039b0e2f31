// Tells prefill workers of decode workers.
#pragma once

#include <memory>

#include "services/router/workers/worker.h"
#include "services/router/workers/worker_set.h"

namespace baton::router {

// Of a worker that has said what it is, for the first time or since it restarted: introduces it to
// the prefill workers that have, or the decode workers that have to it (Prefill.Introduce), so that
// pairs are connected before a request needs them. Does not wait for the answers, and a worker
// that gives none connects when its first request comes. Thread-safe.
void Introduce(const WorkerSet& workers, const std::shared_ptr<Worker>& worker);

}  // namespace baton::router
