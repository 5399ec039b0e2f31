#include "services/router/session/request_span.h"

#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "common/metrics/metric_families.h"
#include "common/trace/call_span.h"
#include "proto/baton/inference/v1/inference.pb.h"
#include "services/router/session/request_plan.h"
#include "services/router/session/timeline.h"

namespace baton::router {
namespace {

void AddStage(trace::CallSpan& span,
              std::string_view name,
              const std::optional<absl::Time>& from,
              const std::optional<absl::Time>& to) {
  if (from.has_value() && to.has_value()) {
    span.AddStage(name, *from, *to);
  }
}

int64_t Number(uint64_t value) { return static_cast<int64_t>(value); }

}  // namespace

void EndSpan(const RequestPlan& plan,
             const absl::Status& status,
             const Timeline& timeline,
             const inference::v1::Usage& usage) {
  if (!plan.span.recording()) {
    return;
  }
  namespace stage = metrics::stage;
  trace::CallSpan span = plan.span;
  AddStage(span, stage::kAdmit, timeline.received, timeline.queued);
  AddStage(span, "queue", timeline.queued, timeline.dispatched);
  AddStage(span, stage::kReserve, timeline.dispatched, timeline.reserved);
  AddStage(span, stage::kPrefillForward, timeline.reserved, timeline.first_token);
  AddStage(span, stage::kTransfer, timeline.first_token, timeline.committed);
  AddStage(span, stage::kDecode, timeline.first_token, timeline.finished);
  span.End(kGenerateRpc,
           timeline.received,
           timeline.finished.value_or(timeline.received),
           status,
           {{"baton.request_id", plan.request_id},
            {"gen_ai.request.model", plan.model},
            {"gen_ai.usage.input_tokens", int64_t{usage.prompt_tokens()}},
            {"gen_ai.usage.output_tokens", int64_t{usage.completion_tokens()}},
            {"baton.kv_format", usage.kv_format()},
            {"baton.transport", usage.transport()},
            {"baton.kv_logical_bytes", Number(usage.kv_logical_bytes())},
            {"baton.kv_wire_bytes", Number(usage.kv_wire_bytes())},
            {"baton.retries", int64_t{usage.retries()}},
            {"baton.resumes", int64_t{usage.resumes()}}});
}

}  // namespace baton::router
