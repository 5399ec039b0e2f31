// Keeps gRPC's callback threads for the life of the process.
#pragma once

namespace baton::rpc {

// gRPC 1.51 runs callbacks on a process-wide completion queue that it frees with the last channel
// and server, from one of the queue's own threads; that teardown races and corrupts the heap at
// process exit. This makes one channel that is never destroyed use the queue, so that it is never
// freed. Called wherever a channel or a server is made; further calls do nothing.
// Thread-safe.
void PinCallbackQueue();

}  // namespace baton::rpc
