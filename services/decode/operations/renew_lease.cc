#include "services/decode/operations/renew_lease.h"

#include "common/rpc/status_mapping.h"
#include "common/worker/conversions.h"
#include "common/worker/engine_status.h"

namespace baton::decode::operations {

grpc::ServerUnaryReactor* RenewLease(worker::Worker& worker,
                                     grpc::CallbackServerContext* context,
                                     const worker::v1::RenewLeaseRequest& request,
                                     worker::v1::RenewLeaseResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (absl::Status status = worker::CheckAccepting(worker); !status.ok()) {
    reactor->Finish(rpc::FinishStatus(context, status));
    return reactor;
  }
  *response->mutable_lease() = worker::ToProto(worker.engine().options().lease);
  worker.engine().RenewLease(
      request.reservation_id(), request.epoch(), [context, reactor](const absl::Status& status) {
        reactor->Finish(rpc::FinishStatus(context, worker::DescribeStatus(status)));
      });
  return reactor;
}

}  // namespace baton::decode::operations
