#include "services/decode/decode_service.h"

#include "services/decode/operations/generate.h"
#include "services/decode/operations/renew_lease.h"

namespace baton::decode {

grpc::ServerWriteReactor<worker::v1::DecodeEvent>* DecodeService::Generate(
    grpc::CallbackServerContext* context, const worker::v1::DecodeRequest* request) {
  return operations::Generate(worker_, landing_, context, *request);
}

grpc::ServerUnaryReactor* DecodeService::RenewLease(grpc::CallbackServerContext* context,
                                                    const worker::v1::RenewLeaseRequest* request,
                                                    worker::v1::RenewLeaseResponse* response) {
  return operations::RenewLease(worker_, context, *request, response);
}

}  // namespace baton::decode
