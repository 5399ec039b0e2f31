#include "common/trace/call_span.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "common/trace/span.h"
#include "common/trace/span_file.h"
#include "common/trace/trace_context.h"

namespace baton::trace {
namespace {

// Of an error's message: it says what was wrong in its first words.
constexpr size_t kMaxMessageBytes = 256;

// Codes that are an error of the server, after OpenTelemetry's conventions for gRPC. Others are the
// caller's, and the span's status stays unset.
bool IsServerError(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDataLoss:
      return true;
    default:
      return false;
  }
}

}  // namespace

CallSpan::CallSpan(SpanFile* file, std::string_view traceparent, bool may_begin) {
  const std::optional<TraceContext> caller = ParseTraceparent(traceparent);
  if (caller.has_value()) {
    traceparent_ = std::string(traceparent);
    context_ = *caller;
    parent_ = caller->span_id;
  } else {
    context_.trace_id = NewTraceId();
    context_.sampled = file != nullptr && may_begin && Draw(file->new_trace_share());
  }
  if (file == nullptr || !context_.sampled) {
    return;
  }
  file_ = file;
  context_.span_id = NewSpanId();
  traceparent_ = ToTraceparent(context_);
}

void CallSpan::AddStage(std::string_view name, absl::Time start, absl::Time end) {
  if (!recording() || end <= start) {
    return;
  }
  Span& stage = stages_.emplace_back();
  stage.context = context_;
  stage.context.span_id = NewSpanId();
  stage.parent = context_.span_id;
  stage.name = std::string(name);
  stage.start = start;
  stage.end = end;
}

void CallSpan::AddStages(absl::Time start,
                         const std::vector<std::pair<std::string_view, absl::Duration>>& stages) {
  for (const auto& [name, duration] : stages) {
    AddStage(name, start, start + duration);
    start += duration;
  }
}

void CallSpan::End(std::string_view rpc,
                   absl::Time start,
                   absl::Time end,
                   const absl::Status& status,
                   std::vector<Attribute> attributes) {
  if (!recording()) {
    return;
  }
  Span& span = stages_.emplace_back();
  span.context = context_;
  span.parent = parent_;
  span.parent_is_remote = parent_.has_value();
  span.name = std::string(rpc);
  span.kind = SpanKind::kServer;
  span.start = start;
  span.end = end;
  const size_t slash = rpc.find('/');
  span.attributes = {{"rpc.system", "grpc"},
                     {"rpc.service", std::string(rpc.substr(0, slash))},
                     {"rpc.method", std::string(rpc.substr(slash + 1))},
                     {"rpc.grpc.status_code", int64_t{status.raw_code()}}};
  for (Attribute& attribute : attributes) {
    span.attributes.push_back(std::move(attribute));
  }
  if (IsServerError(status.code())) {
    span.error = std::string(status.message().substr(0, kMaxMessageBytes));
  }
  std::exchange(file_, nullptr)->Add(std::move(stages_));
}

}  // namespace baton::trace
