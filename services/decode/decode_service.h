// baton.worker.v1.Decode: thin adapter, one file per operation in operations/.
#pragma once

#include "common/handoff/land/landing.h"
#include "common/worker/worker.h"
#include "proto/baton/worker/v1/decode.grpc.pb.h"

namespace baton::decode {

// Thread-safe. Both arguments are borrowed.
class DecodeService : public worker::v1::Decode::CallbackService {
 public:
  DecodeService(worker::Worker* worker, handoff::Landing* landing)
      : worker_(*worker), landing_(*landing) {}

  grpc::ServerWriteReactor<worker::v1::DecodeEvent>* Generate(
      grpc::CallbackServerContext* context, const worker::v1::DecodeRequest* request) override;
  grpc::ServerUnaryReactor* RenewLease(grpc::CallbackServerContext* context,
                                       const worker::v1::RenewLeaseRequest* request,
                                       worker::v1::RenewLeaseResponse* response) override;

 private:
  worker::Worker& worker_;
  handoff::Landing& landing_;
};

}  // namespace baton::decode
