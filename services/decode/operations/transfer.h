// KvTransfer.Transfer.
#pragma once

#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"

#include "common/handoff/land/landing.h"
#include "common/worker/worker.h"
#include "proto/baton/worker/v1/kv_transfer.pb.h"

namespace baton::decode::operations {

// The control stream of one attempt: feeds a landing session. The reactor owns itself.
grpc::ServerBidiReactor<worker::v1::TransferRequest, worker::v1::TransferResponse>* Transfer(
    worker::Worker& worker, handoff::Landing& landing, grpc::CallbackServerContext* context);

}  // namespace baton::decode::operations
