#include "services/prefill/operations/prefill_call.h"

#include <memory>
#include <span>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"

#include "common/base/status_macros.h"
#include "common/config/host_port.h"
#include "common/engine/kv_sink.h"
#include "common/engine/request.h"
#include "common/handoff/send/sender.h"
#include "common/metrics/metric_families.h"
#include "common/rpc/request_log.h"
#include "common/rpc/request_metadata.h"
#include "common/rpc/status_details.h"
#include "common/rpc/status_mapping.h"
#include "common/worker/conversions.h"
#include "common/worker/engine_status.h"
#include "common/worker/prompt_layout.h"
#include "common/worker/worker.h"
#include "services/prefill/operations/identity.h"
#include "services/prefill/operations/shipping.h"
#include "services/prefill/peers/grpc_control_stream.h"

namespace baton::prefill::operations {
namespace {

using worker::v1::PrefillEvent;

// A handful of small messages; progress replaces progress.
constexpr size_t kMaxPendingBytes = size_t{4} << 20;

bool KeepNewestProgress(PrefillEvent& last, const PrefillEvent& next) {
  if (!last.has_progress() || !next.has_progress()) {
    return false;
  }
  last = next;
  return true;
}

// An unavailable peer is the decode worker; the engine's own refusals carry a reason already.
absl::Status NamePeer(absl::Status status) {
  status = worker::DescribeStatus(std::move(status));
  if (absl::IsUnavailable(status) && rpc::ReasonOf(status).empty()) {
    return rpc::WithReason(std::move(status), rpc::reason::kDecodeLost);
  }
  return status;
}

}  // namespace

PrefillCall::PrefillCall(worker::Worker& worker, grpc::CallbackServerContext* context)
    : worker_(worker),
      context_(context),
      open_call_(worker),
      started_(absl::Now()),
      deadline_(rpc::DeadlineOf(*context)),
      metadata_(rpc::ReadRequestMetadata(*context)),
      span_(worker.spans(), metadata_.traceparent, /*may_begin=*/false),
      writer_(this, kMaxPendingBytes, KeepNewestProgress) {}

void PrefillCall::Start(const Shipping& shipping, const worker::v1::PrefillRequest& request) {
  self_ = shared_from_this();
  request_id_ = request.request_id();
  absl::Status status = Check(request);
  if (status.ok()) {
    absl::StatusOr<engine::GenerateRequest> generate = Read(request);
    status = generate.status();
    if (status.ok() && request.use_retained_kv()) {
      Lookup(shipping, request, *std::move(generate));
    } else if (status.ok()) {
      status = Submit(shipping, request, *std::move(generate));
    }
  }
  if (!status.ok()) {
    End(worker::DescribeStatus(std::move(status)), {});
  }
}

absl::Status PrefillCall::Check(const worker::v1::PrefillRequest& request) const {
  BATON_RETURN_IF_ERROR(worker::CheckAccepting(worker_));
  if (request_id_.empty()) {
    return rpc::InvalidField("request_id", "is empty");
  }
  if (!request.has_reservation()) {
    return rpc::InvalidField("reservation", "is missing: decode must have granted one");
  }
  if (request.attempt() == 0) {
    return rpc::InvalidField("attempt", "is 0; attempts count from 1");
  }
  if (const auto address = config::ParseHostPort(request.reservation().control_address());
      !address.ok()) {
    return rpc::InvalidField("reservation.control_address", address.status().ToString());
  }
  return absl::OkStatus();
}

absl::StatusOr<engine::GenerateRequest> PrefillCall::Read(
    const worker::v1::PrefillRequest& request) {
  engine::GenerateRequest generate;
  generate.request_id = request_id_;
  BATON_ASSIGN_OR_RETURN(generate.prompt, worker::PromptFromBytes(request.prompt_token_ids()));
  BATON_ASSIGN_OR_RETURN(generate.sampling, worker::SamplingFromProto(request.sampling()));
  generate.kv_policy = request.kv_policy();
  generate.deadline = deadline_;
  prompt_tokens_ = static_cast<int64_t>(generate.prompt.size());
  num_sequences_ = generate.sampling.n;
  BATON_ASSIGN_OR_RETURN(handoff_shape_,
                         worker_.engine().DescribeHandoff(generate.kv_policy, prompt_tokens_));
  ends_with_first_token_ = generate.sampling.max_tokens == 1;
  with_logprobs_ = generate.sampling.logprobs.has_value();
  return generate;
}

absl::Status PrefillCall::Submit(const Shipping& shipping,
                                 const worker::v1::PrefillRequest& request,
                                 engine::GenerateRequest generate) {
  generate.open_sink = [&] { return OpenRetainingSink(shipping, request); };
  BATON_RETURN_IF_ERROR(worker_.engine().Submit(std::move(generate), shared_from_this()));
  AnnounceAccepted();
  MarkAccepted();
  return absl::OkStatus();
}

std::unique_ptr<engine::KvSink> PrefillCall::OpenRetainingSink(
    const Shipping& shipping, const worker::v1::PrefillRequest& request) {
  const int64_t kv_bytes = int64_t{handoff_shape_.shipped_layers} *
                               handoff_shape_.window.pages_per_layer *
                               handoff_shape_.window.page_bytes +
                           handoff_shape_.hidden_pages * handoff_shape_.hidden_page_bytes;
  retained_ =
      shipping.retention.store().Open(request_id_, IdentityOf(request), kv_bytes, deadline_);
  std::unique_ptr<engine::KvSink> sink = OpenSink(shipping, request);
  return retained_ == nullptr ? std::move(sink)
                              : shipping.retention.Retain(retained_, std::move(sink));
}

std::unique_ptr<engine::KvSink> PrefillCall::OpenSink(const Shipping& shipping,
                                                      const worker::v1::PrefillRequest& request) {
  rpc::RequestMetadata metadata = metadata_;
  metadata.request_id = request_id_;
  metadata.traceparent = span_.traceparent();
  auto control =
      MakeGrpcControlStream(shipping.channels.Get(request.reservation().control_address()),
                            deadline_,
                            metadata,
                            shipping.streams);
  handoff::OutgoingTransfer transfer;
  transfer.request_id = request_id_;
  transfer.reserved = request.reservation();
  transfer.attempt = request.attempt();
  transfer.prompt_tokens = prompt_tokens_;
  transfer.layout = worker::PromptLayout(worker_.layout(), handoff_shape_);
  transfer.pages = {.per_layer = handoff_shape_.window.pages_per_layer,
                    .hidden = handoff_shape_.hidden_pages};
  transfer.deadline = deadline_;
  transfer.report = [self = shared_from_this()](const handoff::TransferReport& report) {
    self->OnReport(report);
  };
  transfer.failed_early = [call = weak_from_this(), shipping](const absl::Status& status) {
    if (const auto self = call.lock(); self != nullptr) {
      self->OnTransferFailed(shipping, status);
    }
  };
  return shipping.sender.Open(std::move(transfer), std::move(control));
}

// A failed transfer ends the request: nobody wants its KV. When decode or a segment was lost, the
// prompt is computed to its end if its KV is retained, so that it need not be computed again.
void PrefillCall::OnTransferFailed(const Shipping& shipping, const absl::Status& status) {
  const bool lost = absl::IsUnavailable(status) || absl::IsDataLoss(status);
  if (lost && retained_ != nullptr && shipping.retention.store().Holds(*retained_)) {
    return;
  }
  Cancel(status);
}

void PrefillCall::OnReport(const handoff::TransferReport& report) {
  absl::MutexLock lock(&mutex_);
  report_ = report;
}

void PrefillCall::AnnounceAccepted() {
  absl::MutexLock lock(&announce_mutex_);
  if (announced_) {
    return;
  }
  announced_ = true;
  PrefillEvent event;
  worker::v1::PrefillAccepted& accepted = *event.mutable_accepted();
  accepted.set_waiting_requests(static_cast<uint32_t>(worker_.engine().load().waiting_requests));
  accepted.set_retains_kv(retained_ != nullptr || from_retained_);
  accepted.set_from_retained_kv(from_retained_);
  Write(std::move(event));
}

void PrefillCall::MarkAccepted() {
  absl::Status reason;
  {
    absl::MutexLock lock(&mutex_);
    carrier_ = Carrier::kEngine;
    reason = cancel_reason_;
    if (reason.ok() || ended_) {
      return;
    }
  }
  worker_.engine().Cancel(request_id_, std::move(reason));
}

void PrefillCall::OnCancel() {
  Cancel(absl::Now() >= deadline_ ? absl::DeadlineExceededError("the deadline passed")
                                  : absl::CancelledError("the caller ended the call"));
}

void PrefillCall::Cancel(absl::Status reason) {
  Carrier carrier = Carrier::kNobody;
  {
    absl::MutexLock lock(&mutex_);
    if (cancel_reason_.ok()) {
      cancel_reason_ = reason;
    }
    if (ended_) {
      return;  // the id may be another request's
    }
    carrier = carrier_;
  }
  if (carrier == Carrier::kEngine) {
    worker_.engine().Cancel(request_id_, std::move(reason));
  } else if (carrier == Carrier::kRetention) {
    End(NamePeer(std::move(reason)), {});
  }
}

void PrefillCall::OnDone() { self_.reset(); }

// Of a whole prompt first tokens tell, which follow at once: behind a message they would wait for
// it to be written.
void PrefillCall::OnPrefillProgress(int64_t done, int64_t total) {
  AnnounceAccepted();
  if (done == total) {
    return;
  }
  PrefillEvent event;
  event.mutable_progress()->set_prompt_tokens_done(static_cast<uint32_t>(done));
  Write(std::move(event));
}

void PrefillCall::OnTokens(int32_t sequence_index, std::span<const engine::TokenOutput> tokens) {
  *first_tokens_.add_tokens() = worker::ToProto(sequence_index, tokens, with_logprobs_);
  complete_sequences_ += ends_with_first_token_ ? 0 : 1;
  WriteFirstTokensIfComplete();
}

void PrefillCall::OnFinished(int32_t sequence_index, const engine::SequenceFinish& finish) {
  *first_tokens_.add_finished() = worker::ToProto(sequence_index, finish);
  complete_sequences_ += 1;
  WriteFirstTokensIfComplete();
}

void PrefillCall::WriteFirstTokensIfComplete() {
  if (complete_sequences_ != num_sequences_) {
    return;
  }
  AnnounceAccepted();
  PrefillEvent event;
  *event.mutable_first_tokens() = std::move(first_tokens_);
  Write(std::move(event));
}

void PrefillCall::OnDone(const absl::Status& status, const engine::RequestStats& stats) {
  if (status.ok()) {
    WriteCommitted(stats);
  }
  // A request that ended well before its cancel came is not complete for its reader.
  End(status.ok() ? writer_.overflow() : NamePeer(status), stats);
}

void PrefillCall::WriteCommitted(const engine::RequestStats& stats) {
  PrefillEvent event;
  worker::v1::PrefillCommitted& committed = *event.mutable_committed();
  *committed.mutable_queue_time() = worker::ToProto(stats.queue_time);
  *committed.mutable_prefill_time() = worker::ToProto(stats.prefill_time);
  *committed.mutable_transfer_time() = worker::ToProto(stats.transfer_time);
  committed.set_kv_logical_bytes(static_cast<uint64_t>(stats.kv_logical_bytes));
  committed.set_kv_wire_bytes(static_cast<uint64_t>(stats.kv_wire_bytes));
  std::string carrier;
  {
    absl::MutexLock lock(&mutex_);
    carrier = report_.carrier;
  }
  committed.set_transport(carrier);
  worker_.metrics().RecordShipped(
      handoff_shape_.format, carrier, stats.kv_wire_bytes, stats.kv_logical_bytes);
  Write(std::move(event));
}

void PrefillCall::Write(PrefillEvent event) {
  absl::Status written = writer_.Write(std::move(event));
  if (absl::IsResourceExhausted(written)) {
    Cancel(std::move(written));
  }
}

void PrefillCall::End(const absl::Status& status, const engine::RequestStats& stats) {
  bool accepted = false;
  {
    absl::MutexLock lock(&mutex_);
    if (ended_) {
      return;
    }
    ended_ = true;
    accepted = carrier_ != Carrier::kNobody;
  }
  worker_.metrics().RecordRequest(status, stats);
  if (accepted && !status.ok()) {
    worker_.metrics().RecordIncomplete(rpc::CodeName(status.code()));
  }
  rpc::LogRequest(
      {.rpc = "Prefill.Prefill",
       .request_id = request_id_,
       .traceparent = metadata_.traceparent,
       .status = status,
       .duration = absl::Now() - started_,
       .counts = {{"prompt_tokens", prompt_tokens_}, {"kv_wire_bytes", stats.kv_wire_bytes}}});
  EndSpan(status, stats);
  writer_.Finish(rpc::FinishStatus(context_, status), absl::IsCancelled(status));
}

void PrefillCall::EndSpan(const absl::Status& status, const engine::RequestStats& stats) {
  namespace stage = metrics::stage;
  span_.AddStages(started_,
                  {{stage::kPrefillQueue, stats.queue_time},
                   {stage::kPrefillForward, stats.prefill_time},
                   {stage::kTransfer, stats.transfer_time}});
  span_.End("baton.worker.v1.Prefill/Prefill",
            started_,
            absl::Now(),
            status,
            {{"baton.request_id", request_id_},
             {"gen_ai.request.model", worker_.options().model_name},
             {"gen_ai.usage.input_tokens", prompt_tokens_},
             {"baton.kv_policy", stats.kv_policy},
             {"baton.kv_logical_bytes", stats.kv_logical_bytes},
             {"baton.kv_wire_bytes", stats.kv_wire_bytes}});
}

}  // namespace baton::prefill::operations
