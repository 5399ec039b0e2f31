#include "services/prefill/prefill_service.h"

#include "common/rpc/status_mapping.h"
#include "services/prefill/operations/introduce.h"
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

grpc::ServerUnaryReactor* PrefillService::Introduce(grpc::CallbackServerContext* context,
                                                    const worker::v1::IntroduceRequest* request,
                                                    worker::v1::IntroduceResponse* /*response*/) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(rpc::FinishStatus(context, operations::Introduce(shipping_.sender, *request)));
  return reactor;
}

}  // namespace baton::prefill
