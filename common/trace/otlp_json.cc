#include "common/trace/otlp_json.h"

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"

#include "common/trace/span.h"
#include "common/trace/trace_context.h"

namespace baton::trace {
namespace {

using nlohmann::ordered_json;

constexpr char kScope[] = "baton";
// opentelemetry.proto.trace.v1.Status.StatusCode.STATUS_CODE_ERROR.
constexpr int kStatusError = 2;
// SpanFlags: the trace flags, "it is known whether the parent is remote", and that it is.
constexpr uint32_t kSampled = 1;
constexpr uint32_t kHasIsRemote = 0x100;
constexpr uint32_t kIsRemote = 0x200;

// 64-bit numbers are strings: a JSON number does not hold them.
std::string Nanoseconds(absl::Time time) { return absl::StrCat(absl::ToUnixNanos(time)); }

ordered_json Value(const Attribute& attribute) {
  if (const auto* text = std::get_if<std::string>(&attribute.second)) {
    return {{"stringValue", *text}};
  }
  if (const auto* number = std::get_if<int64_t>(&attribute.second)) {
    return {{"intValue", absl::StrCat(*number)}};
  }
  return {{"doubleValue", std::get<double>(attribute.second)}};
}

ordered_json Attributes(const std::vector<Attribute>& attributes) {
  ordered_json list = ordered_json::array();
  for (const Attribute& attribute : attributes) {
    list.push_back({{"key", attribute.first}, {"value", Value(attribute)}});
  }
  return list;
}

ordered_json OneSpan(const Span& span) {
  ordered_json json = {{"traceId", ToHex(span.context.trace_id)},
                       {"spanId", ToHex(span.context.span_id)}};
  if (span.parent.has_value()) {
    json["parentSpanId"] = ToHex(*span.parent);
  }
  json["flags"] = (span.context.sampled ? kSampled : 0) | kHasIsRemote |
                  (span.parent_is_remote ? kIsRemote : 0);
  json["name"] = span.name;
  json["kind"] = static_cast<int>(span.kind);
  json["startTimeUnixNano"] = Nanoseconds(span.start);
  json["endTimeUnixNano"] = Nanoseconds(span.end);
  json["attributes"] = Attributes(span.attributes);
  json["status"] = ordered_json::object();
  if (span.error.has_value()) {
    json["status"] = {{"message", *span.error}, {"code", kStatusError}};
  }
  return json;
}

}  // namespace

std::string ToOtlpJson(const Resource& resource, std::span<const Span> spans) {
  ordered_json list = ordered_json::array();
  for (const Span& span : spans) {
    list.push_back(OneSpan(span));
  }
  ordered_json scope_spans = {{"scope", {{"name", kScope}}}, {"spans", std::move(list)}};
  ordered_json resource_spans = {{"resource", {{"attributes", Attributes(resource)}}},
                                 {"scopeSpans", ordered_json::array({std::move(scope_spans)})}};
  const ordered_json request = {
      {"resourceSpans", ordered_json::array({std::move(resource_spans)})}};
  return request.dump(-1, ' ', /*ensure_ascii=*/false, ordered_json::error_handler_t::replace);
}

}  // namespace baton::trace
