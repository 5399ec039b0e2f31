// Inference.GenerateStream.
#pragma once

#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"

#include "proto/baton/inference/v1/inference.pb.h"
#include "services/router/router_core.h"

namespace baton::router {

// Starts the request and returns the reactor that streams its answer. One message is written at a
// time; what comes meanwhile is merged by the session's buffer, and decode is not read while that
// is full, so a slow client costs bounded memory and delays nobody.
grpc::ServerWriteReactor<inference::v1::GenerateStreamResponse>* StartGenerateStream(
    RouterCore* core,
    grpc::CallbackServerContext* context,
    const inference::v1::GenerateRequest* request);

}  // namespace baton::router
