// Inference.GenerateStream.
#pragma once

#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"

#include "services/router/router_core.h"

namespace baton::router {

// Starts the request and returns the reactor that streams its answer. One message is written at a
// time; what comes meanwhile is merged by the session's buffer, and decode is not read while that
// is full, so a slow client costs bounded memory and delays nobody.
grpc::ServerWriteReactor<grpc::ByteBuffer>* StartGenerateStream(
    RouterCore* core, grpc::CallbackServerContext* context, const grpc::ByteBuffer& request);

}  // namespace baton::router
