// KvTransfer.Handshake.
#pragma once

#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"

#include "common/handoff/land/landing.h"
#include "proto/baton/worker/v1/kv_transfer.pb.h"

namespace baton::decode::operations {

// Compares layouts and transports at once; FAILED_PRECONDITION (LAYOUT_MISMATCH) names the first
// field that differs.
grpc::ServerUnaryReactor* Handshake(const handoff::Landing& landing,
                                    grpc::CallbackServerContext* context,
                                    const worker::v1::HandshakeRequest& request,
                                    worker::v1::HandshakeResponse* response);

}  // namespace baton::decode::operations
