// The span of a call that this process serves, and of the stages it went through.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "common/trace/span.h"
#include "common/trace/span_file.h"

namespace baton::trace {

// A value that a call keeps from its start to its end. Records only with a file, and only what the
// trace's sampled flag allows. Not thread-safe.
class CallSpan {
 public:
  // Records nothing.
  CallSpan() = default;
  // `file` is borrowed and may be null. `traceparent` is the caller's; where it is empty or invalid
  // and `may_begin`, the file's share of calls begins a trace.
  CallSpan(SpanFile* file, std::string_view traceparent, bool may_begin);

  bool recording() const { return file_ != nullptr; }
  // What calls made for this one carry: its own context when it records, else the caller's.
  const std::string& traceparent() const { return traceparent_; }

  // A part of the call; nothing where it does not last.
  void AddStage(std::string_view name, absl::Time start, absl::Time end);
  // Stages that follow each other from `start`.
  void AddStages(absl::Time start,
                 const std::vector<std::pair<std::string_view, absl::Duration>>& stages);
  // Hands the spans to the file. `rpc` is "package.Service/Method". Later calls do nothing.
  void End(std::string_view rpc,
           absl::Time start,
           absl::Time end,
           const absl::Status& status,
           std::vector<Attribute> attributes);

 private:
  SpanFile* file_ = nullptr;
  TraceContext context_;
  std::optional<SpanId> parent_;
  std::string traceparent_;
  std::vector<Span> stages_;
};

}  // namespace baton::trace
