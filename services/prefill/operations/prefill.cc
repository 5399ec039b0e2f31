#include "services/prefill/operations/prefill.h"

#include <memory>

#include "common/worker/worker.h"
#include "services/prefill/operations/prefill_call.h"
#include "services/prefill/operations/shipping.h"

namespace baton::prefill::operations {

grpc::ServerWriteReactor<worker::v1::PrefillEvent>* Prefill(
    worker::Worker& worker,
    const Shipping& shipping,
    grpc::CallbackServerContext* context,
    const worker::v1::PrefillRequest& request) {
  auto call = std::make_shared<PrefillCall>(worker, context);
  call->Start(shipping, request);
  return call.get();  // it holds itself until OnDone
}

}  // namespace baton::prefill::operations
