// A server with a Control service to talk to.
#pragma once

#include <string>

#include "common/rpc/request_metadata.h"
#include "common/rpc/status_mapping.h"
#include "proto/baton/worker/v1/control.grpc.pb.h"

namespace baton::rpc {

// Answers GetLoads with `status`, and remembers the metadata of the last call.
class FixedControl : public worker::v1::Control::CallbackService {
 public:
  grpc::ServerUnaryReactor* GetLoads(grpc::CallbackServerContext* context,
                                     const worker::v1::GetLoadsRequest*,
                                     worker::v1::Loads* response) override {
    metadata = ReadRequestMetadata(*context);
    deadline = DeadlineOf(*context);
    response->set_incarnation(42);
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(FinishStatus(context, status));
    return reactor;
  }

  absl::Status status;
  RequestMetadata metadata;
  absl::Time deadline;
};

}  // namespace baton::rpc
