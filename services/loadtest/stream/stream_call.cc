#include "services/loadtest/stream/stream_call.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "common/rpc/request_metadata.h"
#include "common/rpc/status_details.h"
#include "common/rpc/status_mapping.h"
#include "services/loadtest/stream/request_record.h"

namespace baton::loadtest {
namespace {

constexpr uint32_t kMaxReservedMessages = 4096;

uint32_t Microseconds(absl::Duration duration) {
  const int64_t count = absl::ToInt64Microseconds(duration);
  return static_cast<uint32_t>(std::clamp<int64_t>(count, 0, std::numeric_limits<uint32_t>::max()));
}

}  // namespace

StreamCall::StreamCall(const CallContext& context,
                       inference::v1::GenerateRequest request,
                       RequestRecord record,
                       CallFaults faults,
                       bool keep_answer,
                       Done done)
    : context_(context),
      request_(std::move(request)),
      faults_(faults),
      keep_answer_(keep_answer),
      done_(std::move(done)),
      record_(std::move(record)) {
  record_.messages.reserve(std::min(record_.max_tokens, kMaxReservedMessages));
}

void StreamCall::Start(inference::v1::Inference::Stub* stub) {
  self_ = shared_from_this();
  // Before gRPC has it: what gRPC takes to send it is seen by a client, too.
  record_.sent = context_.clock->Elapsed();
  if (record_.deadline != absl::InfiniteDuration()) {
    rpc::SetDeadline(absl::Now() + record_.deadline, &grpc_context_);
  }
  stub->async()->GenerateStream(&grpc_context_, &request_, this);
  ScheduleFaults();
  ReadNext();
  StartCall();
}

void StreamCall::ScheduleFaults() {
  if (faults_.cancel_after.has_value()) {
    const std::weak_ptr<StreamCall> weak = weak_from_this();
    context_.timers->Call(record_.sent + *faults_.cancel_after, [weak] {
      if (const std::shared_ptr<StreamCall> call = weak.lock()) {
        call->Cancel();
      }
    });
  }
}

void StreamCall::ReadNext() {
  if (faults_.read_delay <= absl::ZeroDuration()) {
    StartRead(&message_);
    return;
  }
  // A hold: gRPC must not end the call while nothing is being read.
  AddHold();
  context_.timers->Call(context_.clock->Elapsed() + faults_.read_delay,
                        [call = shared_from_this()] {
                          call->StartRead(&call->message_);
                          call->RemoveHold();
                        });
}

void StreamCall::OnReadDone(bool ok) {
  if (ok) {
    Take(message_);
    ReadNext();
  }
}

uint32_t StreamCall::SinceSent() const {
  return Microseconds(context_.clock->Elapsed() - record_.sent);
}

void StreamCall::Take(const inference::v1::GenerateStreamResponse& message) {
  if (message.has_delta()) {
    TakeDelta(message.delta());
  } else if (message.has_started()) {
    record_.kv_policy = message.started().kv_policy();
  } else if (message.has_finished()) {
    record_.finish = message.finished().reason();
    record_.finished_us = SinceSent();
  } else if (message.has_usage()) {
    record_.usage = message.usage();
    accounted_ = true;
  }
}

void StreamCall::TakeDelta(const inference::v1::Delta& delta) {
  const auto tokens = static_cast<uint32_t>(delta.token_ids_size());
  if (tokens > 0) {
    record_.messages.push_back({.after_us = SinceSent(), .tokens = tokens});
    context_.counters->tokens.fetch_add(tokens, std::memory_order_relaxed);
  }
  if (keep_answer_) {
    answer_.text += delta.text();
    answer_.token_ids.insert(
        answer_.token_ids.end(), delta.token_ids().begin(), delta.token_ids().end());
  }
}

void StreamCall::SetOutcome(const grpc::Status& status) {
  const absl::Status converted = rpc::FromGrpcStatus(status);
  record_.code = converted.code();
  record_.reason = rpc::ReasonOf(converted);
  record_.error = std::string(converted.message());
  if (converted.ok() && !accounted_) {
    record_.code = absl::StatusCode::kDataLoss;
    record_.reason = "INCOMPLETE_STREAM";
    record_.error = "the stream ended without its accounting";
  }
}

void StreamCall::OnDone(const grpc::Status& status) {
  record_.end = context_.clock->Elapsed();
  SetOutcome(status);
  const std::shared_ptr<StreamCall> self = std::move(self_);
  done_(this, std::move(record_), std::move(answer_));
}

}  // namespace baton::loadtest
