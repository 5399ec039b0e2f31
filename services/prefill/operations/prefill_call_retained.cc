// The way of a call whose KV is retained: it is looked up and shipped again, nothing is computed.
#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"

#include "common/engine/kv_sink.h"
#include "common/engine/request.h"
#include "common/handoff/retain/retained_kv.h"
#include "common/kv/codec/kv_format.h"
#include "common/worker/engine_status.h"
#include "services/prefill/operations/identity.h"
#include "services/prefill/operations/prefill_call.h"
#include "services/prefill/operations/shipping.h"

namespace baton::prefill::operations {
namespace {

int64_t LogicalBytes(const kv::v1::KvLayout& layout, int64_t tokens) {
  return kv::KvFormat::LogicalBytes({.layers = static_cast<int32_t>(layout.layers()),
                                     .kv_heads = static_cast<int32_t>(layout.kv_heads()),
                                     .head_dim = static_cast<int32_t>(layout.head_dim())},
                                    tokens);
}

}  // namespace

absl::Status PrefillCall::SetCarrier(Carrier carrier) {
  absl::MutexLock lock(&mutex_);
  carrier_ = carrier;
  return cancel_reason_;
}

bool PrefillCall::Wanted() {
  absl::MutexLock lock(&mutex_);
  return !ended_ && cancel_reason_.ok();
}

void PrefillCall::Lookup(const Shipping& shipping,
                         const worker::v1::PrefillRequest& request,
                         engine::GenerateRequest generate) {
  if (absl::Status cancelled = SetCarrier(Carrier::kRetention); !cancelled.ok()) {
    End(cancelled, {});  // it came before anybody could be told of it
    return;
  }
  // The KV may be on its way still: the request is answered when it is complete.
  auto wanted = std::make_shared<engine::GenerateRequest>(std::move(generate));
  shipping.retention.store().Find(request_id_,
                                  IdentityOf(request),
                                  absl::Now(),
                                  [self = shared_from_this(), shipping, request, wanted](
                                      const std::shared_ptr<const handoff::RetainedKv>& kv) {
                                    if (kv != nullptr) {
                                      if (self->Wanted()) {
                                        self->from_retained_ = true;
                                        self->Replay(kv, self->OpenSink(shipping, request));
                                      }
                                      return;
                                    }
                                    absl::Status status = self->SetCarrier(Carrier::kNobody);
                                    if (status.ok()) {
                                      status = self->Submit(shipping, request, std::move(*wanted));
                                    }
                                    if (!status.ok()) {
                                      self->End(worker::DescribeStatus(std::move(status)), {});
                                    }
                                  });
}

void PrefillCall::Replay(const std::shared_ptr<const handoff::RetainedKv>& kv,
                         std::shared_ptr<engine::KvSink> sink) {
  AnnounceAccepted();
  const engine::CommitInfo& commit = kv->commit;
  for (size_t i = 0; i < commit.first_tokens.size(); ++i) {
    const auto index = static_cast<int32_t>(i);
    if (!commit.finished[i].has_value() || !commit.finished[i]->stop_token_id.has_value()) {
      OnTokens(index, std::span(&commit.first_tokens[i], 1));
    }
    if (commit.finished[i].has_value()) {
      OnFinished(index, *commit.finished[i]);
    }
  }
  engine::RequestStats stats;
  stats.prompt_tokens = prompt_tokens_;
  stats.completion_tokens = num_sequences_;
  stats.kv_policy = handoff_shape_.policy;
  stats.kv_logical_bytes = LogicalBytes(worker_.layout(), prompt_tokens_);
  handoff::ShipRetained(kv,
                        std::move(sink),
                        [self = shared_from_this(), stats, started = absl::Now()](
                            const absl::Status& status, int64_t wire_bytes) mutable {
                          stats.kv_wire_bytes = wire_bytes;
                          stats.transfer_time = absl::Now() - started;
                          self->OnDone(status, stats);
                        });
}

}  // namespace baton::prefill::operations
