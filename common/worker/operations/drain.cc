#include "common/worker/operations/drain.h"

#include "common/worker/worker.h"

namespace baton::worker::operations {

void Drain(Worker& worker) { worker.Drain(); }

}  // namespace baton::worker::operations
