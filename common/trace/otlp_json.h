// Spans in the JSON form of OTLP
// (https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "common/trace/span.h"

namespace baton::trace {

// The process that made the spans: "service.name" and so on.
using Resource = std::vector<Attribute>;

// One opentelemetry.proto.collector.trace.v1.ExportTraceServiceRequest without a line break: a line
// of OTLP's file exporter. Text that is not UTF-8 is replaced.
std::string ToOtlpJson(const Resource& resource, std::span<const Span> spans);

}  // namespace baton::trace
