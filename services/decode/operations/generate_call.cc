#include "services/decode/operations/generate_call.h"

#include <span>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"

#include "common/base/status_macros.h"
#include "common/engine/engine.h"
#include "common/engine/request.h"
#include "common/handoff/land/landing.h"
#include "common/metrics/metric_families.h"
#include "common/rpc/request_log.h"
#include "common/rpc/request_metadata.h"
#include "common/rpc/status_details.h"
#include "common/rpc/status_mapping.h"
#include "common/worker/conversions.h"
#include "common/worker/engine_status.h"
#include "common/worker/prompt_layout.h"
#include "common/worker/worker.h"

namespace baton::decode::operations {
namespace {

using worker::v1::DecodeEvent;

// Waiting tokens of a reader that does not read; about 300,000 tokens without logprobs.
constexpr size_t kMaxPendingBytes = size_t{4} << 20;

bool MergeTokens(DecodeEvent& last, const DecodeEvent& next) {
  if (!last.has_tokens() || !next.has_tokens() || last.tokens().index() != next.tokens().index()) {
    return false;
  }
  last.mutable_tokens()->mutable_tokens()->MergeFrom(next.tokens().tokens());
  return true;
}

}  // namespace

GenerateCall::GenerateCall(worker::Worker& worker,
                           handoff::Landing& landing,
                           grpc::CallbackServerContext* context)
    : worker_(worker),
      landing_(landing),
      context_(context),
      open_call_(worker),
      started_(absl::Now()),
      deadline_(rpc::DeadlineOf(*context)),
      metadata_(rpc::ReadRequestMetadata(*context)),
      span_(worker.spans(), metadata_.traceparent, /*may_begin=*/false),
      writer_(this, kMaxPendingBytes, MergeTokens) {}

void GenerateCall::Start(const worker::v1::DecodeRequest& request) {
  self_ = shared_from_this();
  request_id_ = request.request_id();
  with_logprobs_ = request.sampling().has_logprobs();
  local_prefill_ = worker_.engine().options().role == engine::Role::kBoth;
  absl::Status status = Check(request);
  if (status.ok()) {
    status = local_prefill_ ? SubmitLocally(request) : Reserve(request);
  }
  if (!status.ok()) {
    End(status, {});
  }
}

absl::Status GenerateCall::Check(const worker::v1::DecodeRequest& request) const {
  BATON_RETURN_IF_ERROR(worker::CheckAccepting(worker_));
  if (request_id_.empty()) {
    return rpc::InvalidField("request_id", "is empty");
  }
  if (!local_prefill_ && !request.prompt_token_ids().empty() && request.session_id().empty()) {
    return rpc::WithReason(
        absl::FailedPreconditionError("prompt_token_ids without session_id is for workers of role "
                                      "both; this one is of role decode"),
        rpc::reason::kWrongRole);
  }
  return absl::OkStatus();
}

absl::Status GenerateCall::SubmitLocally(const worker::v1::DecodeRequest& request) {
  engine::GenerateRequest generate;
  generate.request_id = request_id_;
  BATON_ASSIGN_OR_RETURN(generate.prompt, worker::PromptFromBytes(request.prompt_token_ids()));
  BATON_ASSIGN_OR_RETURN(generate.sampling, worker::SamplingFromProto(request.sampling()));
  generate.session_id = request.session_id();
  BATON_ASSIGN_OR_RETURN(generate.delivered, worker::DeliveredFromProto(request));
  generate.deadline = deadline_;
  prompt_tokens_ = static_cast<int64_t>(generate.prompt.size());
  BATON_RETURN_IF_ERROR(DescribeLayout(request.kv_policy()));
  generate.kv_policy = layout_.policy();
  BATON_RETURN_IF_ERROR(worker_.engine().Submit(std::move(generate), shared_from_this()));
  AnnounceLocalPrefill();
  MarkAccepted();
  return absl::OkStatus();
}

absl::Status GenerateCall::Reserve(const worker::v1::DecodeRequest& request) {
  engine::ReserveRequest reserve;
  reserve.request_id = request_id_;
  reserve.prompt_tokens = request.prompt_tokens();
  BATON_ASSIGN_OR_RETURN(reserve.sampling, worker::SamplingFromProto(request.sampling()));
  reserve.session_id = request.session_id();
  BATON_ASSIGN_OR_RETURN(reserve.delivered, worker::DeliveredFromProto(request));
  if (!reserve.session_id.empty()) {
    BATON_ASSIGN_OR_RETURN(reserve.prompt, worker::PromptFromBytes(request.prompt_token_ids()));
  }
  reserve.deadline = deadline_;
  prompt_tokens_ = reserve.prompt_tokens;
  BATON_RETURN_IF_ERROR(DescribeLayout(request.kv_policy()));
  reserve.kv_policy = layout_.policy();
  return worker_.engine().Reserve(
      std::move(reserve),
      shared_from_this(),
      [self = shared_from_this()](absl::StatusOr<engine::ReservationGrant> grant) {
        self->OnGranted(std::move(grant));
      });
}

absl::Status GenerateCall::DescribeLayout(const std::string& kv_policy) {
  BATON_ASSIGN_OR_RETURN(const engine::HandoffShape shape,
                         worker_.engine().DescribeHandoff(kv_policy, prompt_tokens_));
  layout_ = worker::PromptLayout(worker_.layout(), shape);
  return absl::OkStatus();
}

void GenerateCall::OnGranted(absl::StatusOr<engine::ReservationGrant> grant) {
  if (!grant.ok()) {
    End(grant.status(), {});
    return;
  }
  if (grant->extends_kept) {
    local_prefill_ = true;
    AnnounceLocalPrefill();
    MarkAccepted();
    return;
  }
  auto endpoints = landing_.Open(*grant, layout_);
  if (!endpoints.ok()) {
    Cancel(endpoints.status());
    return;
  }
  WriteReserved(*grant, *std::move(endpoints));
  MarkAccepted();
}

void GenerateCall::WriteReserved(const engine::ReservationGrant& grant,
                                 std::vector<worker::v1::TransportEndpoint> endpoints) {
  DecodeEvent event;
  worker::v1::Reserved& reserved = *event.mutable_reserved();
  reserved.set_reservation_id(grant.reservation_id);
  reserved.set_epoch(grant.epoch);
  *reserved.mutable_lease() = worker::ToProto(grant.lease);
  *reserved.mutable_layout() = layout_;
  reserved.set_hidden_pages(static_cast<uint32_t>(grant.hidden_pages));
  reserved.set_pages_per_layer(static_cast<uint32_t>(grant.pages_per_layer));
  reserved.mutable_endpoints()->Assign(endpoints.begin(), endpoints.end());
  reserved.set_control_address(worker_.address());
  Write(std::move(event));
}

void GenerateCall::AnnounceLocalPrefill() {
  absl::MutexLock lock(&announce_mutex_);
  if (announced_ || !local_prefill_) {
    return;
  }
  announced_ = true;
  DecodeEvent event;
  event.mutable_reserved()->set_local_prefill(true);
  *event.mutable_reserved()->mutable_layout() = layout_;
  Write(std::move(event));
}

void GenerateCall::MarkAccepted() {
  {
    absl::MutexLock lock(&mutex_);
    accepted_ = true;
    if (!cancelled_ || ended_) {
      return;
    }
  }
  Cancel(absl::CancelledError("the caller ended the call"));
}

void GenerateCall::OnCancel() {
  {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
    if (!accepted_ || ended_) {
      return;  // not the engine's yet, or no more: the id may be another request's
    }
  }
  Cancel(absl::Now() >= deadline_ ? absl::DeadlineExceededError("the deadline passed")
                                  : absl::CancelledError("the caller ended the call"));
}

void GenerateCall::OnDone() { self_.reset(); }

void GenerateCall::OnTokens(int32_t sequence_index, std::span<const engine::TokenOutput> tokens) {
  AnnounceLocalPrefill();
  DecodeEvent event;
  *event.mutable_tokens() = worker::ToProto(sequence_index, tokens, with_logprobs_);
  Write(std::move(event));
}

void GenerateCall::OnFinished(int32_t sequence_index, const engine::SequenceFinish& finish) {
  AnnounceLocalPrefill();
  DecodeEvent event;
  *event.mutable_finished() = worker::ToProto(sequence_index, finish);
  Write(std::move(event));
}

void GenerateCall::OnDone(const absl::Status& status, const engine::RequestStats& stats) {
  if (status.ok()) {
    AnnounceLocalPrefill();
    DecodeEvent event;
    worker::v1::DecodeUsage& usage = *event.mutable_usage();
    usage.set_completion_tokens(static_cast<uint32_t>(stats.completion_tokens));
    *usage.mutable_queue_time() = worker::ToProto(stats.queue_time);
    *usage.mutable_prefill_time() = worker::ToProto(stats.prefill_time);
    *usage.mutable_decode_time() = worker::ToProto(stats.decode_time);
    usage.set_kv_logical_bytes(static_cast<uint64_t>(stats.kv_logical_bytes));
    usage.set_kv_resident_bytes(static_cast<uint64_t>(stats.kv_resident_bytes));
    usage.set_cached_tokens(static_cast<uint32_t>(stats.cached_tokens));
    Write(std::move(event));
  }
  // A request that ended well before its cancel came is not complete for its reader.
  End(status.ok() ? writer_.overflow() : status, stats);
}

void GenerateCall::Write(DecodeEvent event) {
  absl::Status written = writer_.Write(std::move(event));
  if (absl::IsResourceExhausted(written)) {
    Cancel(std::move(written));
  }
}

void GenerateCall::Cancel(absl::Status reason) {
  worker_.engine().Cancel(request_id_, std::move(reason));
}

void GenerateCall::End(const absl::Status& status, const engine::RequestStats& stats) {
  bool accepted = false;
  {
    absl::MutexLock lock(&mutex_);
    if (ended_) {
      return;
    }
    ended_ = true;
    accepted = accepted_;
  }
  const absl::Status described = worker::DescribeStatus(status);
  worker_.metrics().RecordRequest(described, stats);
  if (accepted && !described.ok()) {
    worker_.metrics().RecordIncomplete(rpc::CodeName(described.code()));
  }
  rpc::LogRequest({.rpc = "Decode.Generate",
                   .request_id = request_id_,
                   .traceparent = metadata_.traceparent,
                   .status = described,
                   .duration = absl::Now() - started_,
                   .counts = {{"prompt_tokens", prompt_tokens_},
                              {"cached_tokens", stats.cached_tokens},
                              {"completion_tokens", stats.completion_tokens},
                              {"kv_resident_bytes", stats.kv_resident_bytes}}});
  EndSpan(described, stats);
  // What a caller that is gone, late or too slow has not read yet is of no use to it.
  const bool discard = absl::IsCancelled(described) || absl::IsDeadlineExceeded(described) ||
                       absl::IsResourceExhausted(described);
  writer_.Finish(rpc::FinishStatus(context_, described), discard);
}

void GenerateCall::EndSpan(const absl::Status& status, const engine::RequestStats& stats) {
  namespace stage = metrics::stage;
  const absl::Time now = absl::Now();
  if (local_prefill_) {
    span_.AddStages(
        started_,
        {{stage::kPrefillQueue, stats.queue_time}, {stage::kPrefillForward, stats.prefill_time}});
  }
  span_.AddStage(stage::kDecode, now - stats.decode_time, now);
  span_.End("baton.worker.v1.Decode/Generate",
            started_,
            now,
            status,
            {{"baton.request_id", request_id_},
             {"gen_ai.request.model", worker_.options().model_name},
             {"gen_ai.usage.input_tokens", prompt_tokens_},
             {"gen_ai.usage.output_tokens", stats.completion_tokens},
             {"baton.kv_policy", stats.kv_policy},
             {"baton.kv_resident_bytes", stats.kv_resident_bytes},
             {"baton.cached_tokens", stats.cached_tokens}});
}

}  // namespace baton::decode::operations
