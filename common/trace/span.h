// What a process did for a trace.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/time/time.h"

#include "common/trace/trace_context.h"

namespace baton::trace {

using Attribute = std::pair<std::string, std::variant<std::string, int64_t, double>>;

// Numbers are those of opentelemetry.proto.trace.v1.Span.SpanKind.
enum class SpanKind { kInternal = 1, kServer = 2 };

struct Span {
  TraceContext context;
  std::optional<SpanId> parent = {};  // unset: the trace begins here
  bool parent_is_remote = false;
  std::string name;
  SpanKind kind = SpanKind::kInternal;
  absl::Time start;
  absl::Time end;
  std::vector<Attribute> attributes = {};
  std::optional<std::string> error = {};  // set: the span's status is an error
};

}  // namespace baton::trace
