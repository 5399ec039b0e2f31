// baton.worker.v1.Prefill: thin adapter, its operation is in operations/.
#pragma once

#include "common/handoff/send/sender.h"
#include "common/worker/worker.h"
#include "proto/baton/worker/v1/prefill.grpc.pb.h"
#include "services/prefill/peers/channel_cache.h"

namespace baton::prefill {

// Thread-safe. All arguments are borrowed.
class PrefillService : public worker::v1::Prefill::CallbackService {
 public:
  PrefillService(worker::Worker* worker, handoff::Sender* sender, ChannelCache* channels)
      : worker_(*worker), sender_(*sender), channels_(*channels) {}

  grpc::ServerWriteReactor<worker::v1::PrefillEvent>* Prefill(
      grpc::CallbackServerContext* context, const worker::v1::PrefillRequest* request) override;

 private:
  worker::Worker& worker_;
  handoff::Sender& sender_;
  ChannelCache& channels_;
};

}  // namespace baton::prefill
