#include "common/worker/control_service.h"

#include "common/rpc/status_mapping.h"
#include "common/worker/operations/abort.h"
#include "common/worker/operations/drain.h"
#include "common/worker/operations/get_loads.h"
#include "common/worker/operations/get_server_info.h"
#include "common/worker/operations/set_log_level.h"
#include "common/worker/operations/watch_loads.h"

namespace baton::worker {
namespace {

grpc::ServerUnaryReactor* Reply(grpc::CallbackServerContext* context, const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(rpc::FinishStatus(context, status));
  return reactor;
}

}  // namespace

grpc::ServerUnaryReactor* ControlService::GetServerInfo(grpc::CallbackServerContext* context,
                                                        const v1::GetServerInfoRequest*,
                                                        v1::ServerInfo* response) {
  *response = operations::GetServerInfo(worker_);
  return Reply(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* ControlService::GetLoads(grpc::CallbackServerContext* context,
                                                   const v1::GetLoadsRequest*,
                                                   v1::Loads* response) {
  *response = operations::GetLoads(worker_);
  return Reply(context, absl::OkStatus());
}

grpc::ServerWriteReactor<v1::Loads>* ControlService::WatchLoads(
    grpc::CallbackServerContext*, const v1::WatchLoadsRequest* request) {
  return operations::WatchLoads(worker_, *request);
}

grpc::ServerUnaryReactor* ControlService::Abort(grpc::CallbackServerContext* context,
                                                const v1::AbortRequest* request,
                                                v1::AbortResponse*) {
  return Reply(context, operations::Abort(worker_, *request));
}

grpc::ServerUnaryReactor* ControlService::Drain(grpc::CallbackServerContext* context,
                                                const v1::DrainRequest*,
                                                v1::DrainResponse*) {
  operations::Drain(worker_);
  return Reply(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* ControlService::SetLogLevel(grpc::CallbackServerContext* context,
                                                      const v1::SetLogLevelRequest* request,
                                                      v1::SetLogLevelResponse*) {
  return Reply(context, operations::SetLogLevel(*request));
}

}  // namespace baton::worker
