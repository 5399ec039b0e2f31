// The accounting of a request, from its workers' messages and the router's clock.
#include <optional>

#include "google/protobuf/duration.pb.h"

#include "services/router/session/proto_time.h"
#include "services/router/session/request_flow.h"
#include "services/router/session/sequence_output.h"

namespace baton::router {
namespace {

absl::Duration Between(const std::optional<absl::Time>& from, const std::optional<absl::Time>& to) {
  return from.has_value() && to.has_value() && *to > *from ? *to - *from : absl::ZeroDuration();
}

// Bytes of the prompt's KV at 16 bits per element.
uint64_t LogicalBytes(const kv::v1::KvLayout& layout, uint64_t prompt_tokens) {
  return prompt_tokens * layout.layers() * 2 * layout.kv_heads() * layout.head_dim() * 2;
}

}  // namespace

void RequestFlow::FillUsage(absl::Time now) {
  usage_.set_prompt_tokens(plan_->prompt_tokens);
  uint32_t completion_tokens = 0;
  for (const SequenceOutput& sequence : sequences_) {
    completion_tokens += sequence.completion_tokens();
  }
  usage_.set_completion_tokens(completion_tokens);
  usage_.set_kv_format(reservation_.layout().policy());
  usage_.set_retries(retries_);
  usage_.set_resumes(resumes_);
  FillDurations(now);
  FillKvUsage();
}

void RequestFlow::FillDurations(absl::Time now) {
  const absl::Time dispatched = timeline_.dispatched.value_or(now);
  absl::Duration queue = dispatched - timeline_.queued.value_or(timeline_.received);
  absl::Duration prefill = Between(timeline_.reserved, timeline_.first_token);
  absl::Duration transfer =
      local_prefill_ ? absl::ZeroDuration() : Between(timeline_.first_token, timeline_.committed);
  absl::Duration decode =
      Between(local_prefill_ ? timeline_.first_token : timeline_.committed, now);
  if (committed_.has_value()) {
    queue += FromProto(committed_->queue_time());
    prefill = FromProto(committed_->prefill_time());
    transfer = FromProto(committed_->transfer_time());
  }
  if (decode_usage_.has_value()) {
    queue += FromProto(decode_usage_->queue_time());
    decode = FromProto(decode_usage_->decode_time());
    if (local_prefill_) {
      prefill = FromProto(decode_usage_->prefill_time());
    }
  }
  *usage_.mutable_queue_time() = ToProto(queue);
  *usage_.mutable_prefill_time() = ToProto(prefill);
  *usage_.mutable_transfer_time() = ToProto(transfer);
  *usage_.mutable_decode_time() = ToProto(decode);
  *usage_.mutable_time_to_first_token() =
      ToProto(Between(timeline_.received, timeline_.first_token));
  *usage_.mutable_total_time() = ToProto(now - timeline_.received);
}

void RequestFlow::FillKvUsage() {
  // A request that a stop string ended has no accounting from decode; the layout gives the same.
  const kv::v1::KvLayout& layout = reservation_.layout();
  usage_.set_kv_logical_bytes(LogicalBytes(layout, plan_->prompt_tokens));
  usage_.set_kv_resident_bytes(uint64_t{reservation_.pages_per_layer()} * layout.layers() *
                               layout.page_bytes());
  if (committed_.has_value()) {
    usage_.set_kv_logical_bytes(committed_->kv_logical_bytes());
    usage_.set_kv_wire_bytes(committed_->kv_wire_bytes());
    usage_.set_transport(committed_->transport());
  }
  if (decode_usage_.has_value()) {
    usage_.set_kv_logical_bytes(decode_usage_->kv_logical_bytes());
    usage_.set_kv_resident_bytes(decode_usage_->kv_resident_bytes());
    usage_.set_cached_tokens(decode_usage_->cached_tokens());
  }
}

}  // namespace baton::router
