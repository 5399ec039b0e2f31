// KvTransfer.Transfer to a decode worker.
#pragma once

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "grpcpp/channel.h"

#include "common/handoff/send/control_stream.h"
#include "common/rpc/request_metadata.h"

namespace baton::prefill {

// A stream on `channel`, opened by Start, with `deadline` and `metadata`. A connection that breaks
// closes it with kUnavailable and reason DECODE_LOST.
std::unique_ptr<handoff::ControlStream> MakeGrpcControlStream(
    std::shared_ptr<grpc::Channel> channel,
    absl::Time deadline,
    const rpc::RequestMetadata& metadata);

}  // namespace baton::prefill
