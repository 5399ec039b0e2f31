// Control.Drain.
#pragma once

namespace baton::worker {
class Worker;
}

namespace baton::worker::operations {

// Refuses new requests and reservations; running ones finish and readiness turns NOT_SERVING.
void Drain(Worker& worker);

}  // namespace baton::worker::operations
