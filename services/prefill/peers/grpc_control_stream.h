// KvTransfer.Transfer to a decode worker.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "grpcpp/channel.h"

#include "common/base/live_counter.h"
#include "common/handoff/send/control_stream.h"
#include "common/rpc/request_metadata.h"

namespace baton::prefill {

// A stream on `channel`, opened by Start, with `deadline` and `metadata`. A connection that breaks
// closes it with kUnavailable and reason DECODE_LOST. `on_failed` is called at most once, from a
// gRPC thread, when decode or the connection ended the stream with an error, so that a prompt whose
// reservation is gone need not be computed to its end. `live` counts the stream until the last of
// what gRPC's threads tell of it has been told, and is borrowed until then.
std::unique_ptr<handoff::ControlStream> MakeGrpcControlStream(
    std::shared_ptr<grpc::Channel> channel,
    absl::Time deadline,
    const rpc::RequestMetadata& metadata,
    LiveCounter& live,
    std::function<void(const absl::Status&)> on_failed);

}  // namespace baton::prefill
