#include "services/loadtest/measure/request_figures.h"

#include <cstdint>
#include <optional>

#include "absl/time/time.h"

#include "services/loadtest/stream/request_record.h"

namespace baton::loadtest {
namespace {

double HeldBackMs(const RequestRecord& record) {
  return absl::ToDoubleMilliseconds(record.sent - record.scheduled);
}

std::optional<double> ToMilliseconds(std::optional<uint32_t> microseconds) {
  return microseconds.has_value() ? std::optional(*microseconds / 1e3) : std::nullopt;
}

std::optional<double> Plus(std::optional<double> value, double more) {
  return value.has_value() ? std::optional(*value + more) : std::nullopt;
}

}  // namespace

int64_t TokenCount(const RequestRecord& record) {
  int64_t count = 0;
  for (const TokenMessage& message : record.messages) {
    count += message.tokens;
  }
  return count;
}

std::optional<double> TtftMs(const RequestRecord& record) {
  return record.messages.empty() ? ToMilliseconds(record.finished_us)
                                 : ToMilliseconds(record.messages.front().after_us);
}

std::optional<double> ScheduledTtftMs(const RequestRecord& record) {
  return Plus(TtftMs(record), HeldBackMs(record));
}

std::optional<double> TpotMs(const RequestRecord& record) {
  const int64_t tokens = TokenCount(record);
  if (tokens < 2) {
    return std::nullopt;
  }
  const uint32_t span = record.messages.back().after_us - record.messages.front().after_us;
  return span / 1e3 / static_cast<double>(tokens - 1);
}

std::optional<double> LatencyMs(const RequestRecord& record) {
  return ToMilliseconds(record.finished_us);
}

std::optional<double> ScheduledLatencyMs(const RequestRecord& record) {
  return Plus(LatencyMs(record), HeldBackMs(record));
}

double LatenessMs(const RequestRecord& record) {
  return absl::ToDoubleMilliseconds(record.sent - record.allowed);
}

bool IsTruncated(const RequestRecord& record) {
  return record.ok() && !record.ignore_eos && record.finish == inference::v1::FINISH_REASON_LENGTH;
}

bool IsShort(const RequestRecord& record) {
  return record.ok() && record.ignore_eos && TokenCount(record) < record.max_tokens;
}

}  // namespace baton::loadtest
