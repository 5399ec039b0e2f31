#include "services/decode/operations/generate.h"

#include <memory>

#include "services/decode/operations/generate_call.h"

namespace baton::decode::operations {

grpc::ServerWriteReactor<worker::v1::DecodeEvent>* Generate(
    worker::Worker& worker,
    handoff::Landing& landing,
    grpc::CallbackServerContext* context,
    const worker::v1::DecodeRequest& request) {
  auto call = std::make_shared<GenerateCall>(worker, landing, context);
  call->Start(request);
  return call.get();  // it holds itself until OnDone
}

}  // namespace baton::decode::operations
