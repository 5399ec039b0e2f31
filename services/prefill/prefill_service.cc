#include "services/prefill/prefill_service.h"

#include "services/prefill/operations/prefill.h"

namespace baton::prefill {

grpc::ServerWriteReactor<worker::v1::PrefillEvent>* PrefillService::Prefill(
    grpc::CallbackServerContext* context, const worker::v1::PrefillRequest* request) {
  return operations::Prefill(worker_, shipping_, context, *request);
}

grpc::ServerUnaryReactor* PrefillService::Release(grpc::CallbackServerContext* context,
                                                  const worker::v1::ReleaseRequest* request,
                                                  worker::v1::ReleaseResponse* /*response*/) {
  shipping_.retention.store().Release(request->request_id());
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

}  // namespace baton::prefill
