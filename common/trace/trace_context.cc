#include "common/trace/trace_context.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"

namespace baton::trace {
namespace {

// version "-" trace id "-" span id "-" flags
constexpr size_t kLength = 2 + 1 + 32 + 1 + 16 + 1 + 2;
constexpr uint8_t kSampledFlag = 1;

int Digit(char c) {
  if (c >= '0' && c <= '9') {
    return c - '0';
  }
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

template <size_t N>
std::optional<std::array<uint8_t, N>> Bytes(std::string_view hex) {
  std::array<uint8_t, N> bytes = {};
  for (size_t i = 0; i < N; ++i) {
    const int high = Digit(hex[2 * i]);
    const int low = Digit(hex[2 * i + 1]);
    if (high < 0 || low < 0) {
      return std::nullopt;
    }
    bytes[i] = static_cast<uint8_t>(high << 4 | low);
  }
  return bytes;
}

template <size_t N>
bool AllZero(const std::array<uint8_t, N>& bytes) {
  return std::ranges::all_of(bytes, [](uint8_t byte) { return byte == 0; });
}

absl::BitGen& Random() {
  static thread_local absl::BitGen random;
  return random;
}

template <size_t N>
std::array<uint8_t, N> RandomBytes() {
  std::array<uint8_t, N> bytes = {};
  while (AllZero(bytes)) {
    for (uint8_t& byte : bytes) {
      byte = absl::Uniform<uint8_t>(Random());
    }
  }
  return bytes;
}

}  // namespace

std::optional<TraceContext> ParseTraceparent(std::string_view text) {
  if (text.size() < kLength || text[2] != '-' || text[35] != '-' || text[52] != '-') {
    return std::nullopt;
  }
  const auto version = Bytes<1>(text.substr(0, 2));
  const auto trace_id = Bytes<16>(text.substr(3, 32));
  const auto span_id = Bytes<8>(text.substr(36, 16));
  const auto flags = Bytes<1>(text.substr(53, 2));
  if (!version || !trace_id || !span_id || !flags || AllZero(*trace_id) || AllZero(*span_id)) {
    return std::nullopt;
  }
  const bool exact = text.size() == kLength;
  const uint8_t number = version->front();
  if (number == 0xff || (number == 0 && !exact) || (!exact && text[kLength] != '-')) {
    return std::nullopt;
  }
  return TraceContext{
      .trace_id = *trace_id, .span_id = *span_id, .sampled = (flags->front() & kSampledFlag) != 0};
}

std::string ToTraceparent(const TraceContext& context) {
  return absl::StrCat(
      "00-", ToHex(context.trace_id), "-", ToHex(context.span_id), context.sampled ? "-01" : "-00");
}

TraceId NewTraceId() { return RandomBytes<16>(); }

SpanId NewSpanId() { return RandomBytes<8>(); }

bool Draw(double share) { return absl::Bernoulli(Random(), share); }

}  // namespace baton::trace
