// Prefill.Prefill.
#pragma once

#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"

#include "common/worker/worker.h"
#include "proto/baton/worker/v1/prefill.pb.h"
#include "services/prefill/operations/shipping.h"

namespace baton::prefill::operations {

// Queues a prompt with a sink that ships its KV into the request's reservation, and returns the
// reactor that streams its events. The reactor owns itself. Nothing blocks.
grpc::ServerWriteReactor<worker::v1::PrefillEvent>* Prefill(
    worker::Worker& worker,
    const Shipping& shipping,
    grpc::CallbackServerContext* context,
    const worker::v1::PrefillRequest& request);

}  // namespace baton::prefill::operations
