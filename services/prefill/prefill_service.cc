#include "services/prefill/prefill_service.h"

#include "services/prefill/operations/prefill.h"

namespace baton::prefill {

grpc::ServerWriteReactor<worker::v1::PrefillEvent>* PrefillService::Prefill(
    grpc::CallbackServerContext* context, const worker::v1::PrefillRequest* request) {
  return operations::Prefill(worker_, sender_, channels_, context, *request);
}

}  // namespace baton::prefill
