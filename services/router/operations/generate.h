// Inference.Generate.
#pragma once

#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"

#include "proto/baton/inference/v1/inference.pb.h"
#include "services/router/router_core.h"

namespace baton::router {

// GenerateStream collected into one message.
grpc::ServerUnaryReactor* StartGenerate(RouterCore* core,
                                        grpc::CallbackServerContext* context,
                                        const inference::v1::GenerateRequest* request,
                                        inference::v1::GenerateResponse* response);

}  // namespace baton::router
