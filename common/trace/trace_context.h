// W3C trace context: which trace a call belongs to (https://www.w3.org/TR/trace-context/).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace baton::trace {

using TraceId = std::array<uint8_t, 16>;
using SpanId = std::array<uint8_t, 8>;

// One span's place: its trace and its own id, neither all zero.
struct TraceContext {
  TraceId trace_id = {};
  SpanId span_id = {};
  bool sampled = false;

  bool operator==(const TraceContext&) const = default;
};

// Reads a `traceparent`. Outside bytes: unset for anything that the specification calls invalid,
// upper-case digits and all-zero ids included. Of later versions it reads what it knows.
std::optional<TraceContext> ParseTraceparent(std::string_view text);

// The `traceparent` of version 00: 55 characters.
std::string ToTraceparent(const TraceContext& context);

// Ids are random and thread-safe to draw.
TraceId NewTraceId();
SpanId NewSpanId();
// True with a probability of `share`.
bool Draw(double share);

// Lower-case hexadecimal digits.
template <size_t N>
std::string ToHex(const std::array<uint8_t, N>& bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string hex;
  hex.reserve(2 * N);
  for (const uint8_t byte : bytes) {
    hex += kDigits[byte >> 4];
    hex += kDigits[byte & 15];
  }
  return hex;
}

}  // namespace baton::trace
