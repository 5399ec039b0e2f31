// Decode.RenewLease.
#pragma once

#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"

#include "common/worker/worker.h"
#include "proto/baton/worker/v1/decode.pb.h"

namespace baton::decode::operations {

// Renews the lease; answers when the engine has done so. FAILED_PRECONDITION (STALE_EPOCH) for a
// reservation that is gone.
grpc::ServerUnaryReactor* RenewLease(worker::Worker& worker,
                                     grpc::CallbackServerContext* context,
                                     const worker::v1::RenewLeaseRequest& request,
                                     worker::v1::RenewLeaseResponse* response);

}  // namespace baton::decode::operations
