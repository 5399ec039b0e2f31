#include "services/router/session/prefill_call.h"

#include <memory>
#include <utility>

#include "common/rpc/request_metadata.h"
#include "common/rpc/status_mapping.h"
#include "services/router/workers/worker.h"
#include "services/router/workers/worker_calls.h"

namespace baton::router {

PrefillCall::PrefillCall(std::shared_ptr<Worker> worker,
                         worker::v1::PrefillRequest request,
                         uint64_t number,
                         std::shared_ptr<PrefillCallOwner> owner)
    : counted_(worker->calls().live()),
      worker_(std::move(worker)),
      request_(std::move(request)),
      number_(number),
      owner_(std::move(owner)) {}

std::shared_ptr<PrefillCall> PrefillCall::Start(std::shared_ptr<Worker> worker,
                                                worker::v1::PrefillRequest request,
                                                const rpc::RequestMetadata& metadata,
                                                absl::Time deadline,
                                                uint64_t number,
                                                std::shared_ptr<PrefillCallOwner> owner) {
  std::shared_ptr<PrefillCall> call(
      new PrefillCall(std::move(worker), std::move(request), number, std::move(owner)));
  call->self_ = call;
  rpc::AddRequestMetadata(metadata, &call->context_);
  rpc::SetDeadline(deadline, &call->context_);
  call->worker_->prefill_stub().async()->Prefill(&call->context_, &call->request_, call.get());
  call->StartRead(&call->event_);
  call->StartCall();
  return call;
}

void PrefillCall::OnReadDone(bool ok) {
  if (!ok) {
    return;  // OnDone follows
  }
  owner_->OnPrefillEvent(number_, event_);
  StartRead(&event_);
}

void PrefillCall::OnDone(const grpc::Status& status) {
  const std::shared_ptr<PrefillCall> self = std::move(self_);
  const std::shared_ptr<PrefillCallOwner> owner = std::move(owner_);
  owner->OnPrefillEnd(number_, rpc::FromGrpcStatus(status));
}

}  // namespace baton::router
