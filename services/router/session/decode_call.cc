#include "services/router/session/decode_call.h"

#include <memory>
#include <utility>

#include "common/rpc/request_metadata.h"
#include "common/rpc/status_mapping.h"
#include "services/router/workers/worker.h"
#include "services/router/workers/worker_calls.h"

namespace baton::router {

DecodeCall::DecodeCall(std::shared_ptr<Worker> worker,
                       worker::v1::DecodeRequest request,
                       uint64_t number,
                       std::shared_ptr<DecodeCallOwner> owner)
    : counted_(worker->calls().live()),
      worker_(std::move(worker)),
      request_(std::move(request)),
      number_(number),
      owner_(std::move(owner)) {}

std::shared_ptr<DecodeCall> DecodeCall::Start(std::shared_ptr<Worker> worker,
                                              worker::v1::DecodeRequest request,
                                              const rpc::RequestMetadata& metadata,
                                              absl::Time deadline,
                                              uint64_t number,
                                              std::shared_ptr<DecodeCallOwner> owner) {
  std::shared_ptr<DecodeCall> call(
      new DecodeCall(std::move(worker), std::move(request), number, std::move(owner)));
  call->self_ = call;
  rpc::AddRequestMetadata(metadata, &call->context_);
  rpc::SetDeadline(deadline, &call->context_);
  call->worker_->decode_stub().async()->Generate(&call->context_, &call->request_, call.get());
  call->AddHold();
  call->StartRead(&call->event_);
  call->StartCall();
  return call;
}

void DecodeCall::Read() { StartRead(&event_); }

void DecodeCall::Cancel() {
  context_.TryCancel();
  ReleaseHold();
}

void DecodeCall::ReleaseHold() {
  if (held_.exchange(false)) {
    RemoveHold();
  }
}

void DecodeCall::OnReadDone(bool ok) {
  if (!ok) {
    ReleaseHold();  // OnDone follows
    return;
  }
  owner_->OnDecodeEvent(number_, std::move(event_));
}

void DecodeCall::OnDone(const grpc::Status& status) {
  const std::shared_ptr<DecodeCall> self = std::move(self_);
  const std::shared_ptr<DecodeCallOwner> owner = std::move(owner_);
  owner->OnDecodeEnd(number_, rpc::FromGrpcStatus(status));
}

}  // namespace baton::router
