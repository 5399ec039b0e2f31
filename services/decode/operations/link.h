// KvTransfer.Link.
#pragma once

#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"

#include "common/transport/nccl/nccl_transport.h"
#include "common/worker/worker.h"
#include "proto/baton/worker/v1/kv_link.pb.h"

namespace baton::decode::operations {

// The stream of a pair of devices, of transport "nccl"; UNIMPLEMENTED where that is not offered
// (null).
grpc::ServerBidiReactor<worker::v1::LinkMessage, worker::v1::LinkMessage>* Link(
    worker::Worker& worker,
    transport::NcclTransport* transport,
    grpc::CallbackServerContext* context);

}  // namespace baton::decode::operations
