// KvTransfer.Transfer to a decode worker.
#pragma once

#include <memory>

#include "absl/time/time.h"
#include "grpcpp/channel.h"

#include "common/base/live_counter.h"
#include "common/handoff/send/control_stream.h"
#include "common/rpc/request_metadata.h"

namespace baton::prefill {

// A stream on `channel`, opened by Start, with `deadline` and `metadata`. A connection that breaks
// closes it with kUnavailable and reason DECODE_LOST. `live` counts the stream until the last of
// what gRPC's threads tell of it has been told, and is borrowed until then.
std::unique_ptr<handoff::ControlStream> MakeGrpcControlStream(
    std::shared_ptr<grpc::Channel> channel,
    absl::Time deadline,
    const rpc::RequestMetadata& metadata,
    LiveCounter& live);

}  // namespace baton::prefill
