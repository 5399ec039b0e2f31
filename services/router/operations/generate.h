// Inference.Generate.
#pragma once

#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"

#include "services/router/router_core.h"

namespace baton::router {

// GenerateStream collected into one message.
grpc::ServerUnaryReactor* StartGenerate(RouterCore* core,
                                        grpc::CallbackServerContext* context,
                                        const grpc::ByteBuffer& request,
                                        grpc::ByteBuffer* response);

}  // namespace baton::router
