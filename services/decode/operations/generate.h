// Decode.Generate.
#pragma once

#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"

#include "common/handoff/land/landing.h"
#include "common/worker/worker.h"
#include "proto/baton/worker/v1/decode.pb.h"

namespace baton::decode::operations {

// Starts a request: reserves pages (or, in role both, submits the prompt) and returns the reactor
// that streams its events. The reactor owns itself. Nothing blocks.
grpc::ServerWriteReactor<worker::v1::DecodeEvent>* Generate(
    worker::Worker& worker,
    handoff::Landing& landing,
    grpc::CallbackServerContext* context,
    const worker::v1::DecodeRequest& request);

}  // namespace baton::decode::operations
