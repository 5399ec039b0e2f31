// baton.worker.v1.Prefill: thin adapter, its operation is in operations/.
#pragma once

#include "common/base/live_counter.h"
#include "common/handoff/retain/retention.h"
#include "common/handoff/send/sender.h"
#include "common/worker/worker.h"
#include "proto/baton/worker/v1/prefill.grpc.pb.h"
#include "services/prefill/operations/shipping.h"
#include "services/prefill/peers/channel_cache.h"

namespace baton::prefill {

// Thread-safe. All arguments are borrowed.
class PrefillService : public worker::v1::Prefill::CallbackService {
 public:
  PrefillService(worker::Worker* worker,
                 handoff::Sender* sender,
                 handoff::Retention* retention,
                 ChannelCache* channels,
                 LiveCounter* streams)
      : worker_(*worker), shipping_{*sender, *retention, *channels, *streams} {}

  grpc::ServerWriteReactor<worker::v1::PrefillEvent>* Prefill(
      grpc::CallbackServerContext* context, const worker::v1::PrefillRequest* request) override;
  grpc::ServerUnaryReactor* Release(grpc::CallbackServerContext* context,
                                    const worker::v1::ReleaseRequest* request,
                                    worker::v1::ReleaseResponse* response) override;
  grpc::ServerUnaryReactor* Introduce(grpc::CallbackServerContext* context,
                                      const worker::v1::IntroduceRequest* request,
                                      worker::v1::IntroduceResponse* response) override;

 private:
  worker::Worker& worker_;
  const operations::Shipping shipping_;
};

}  // namespace baton::prefill
