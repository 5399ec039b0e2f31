// KvTransfer.PushKv.
#pragma once

#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"

#include "common/transport/grpc/grpc_transport.h"
#include "common/worker/worker.h"
#include "proto/baton/worker/v1/kv_transfer.pb.h"

namespace baton::decode::operations {

// The data path of transport "grpc": the transport's own reactor writes the chunks in place.
grpc::ServerBidiReactor<worker::v1::KvChunk, worker::v1::KvChunkAck>* PushKv(
    worker::Worker& worker,
    transport::GrpcTransport& transport,
    grpc::CallbackServerContext* context);

}  // namespace baton::decode::operations
