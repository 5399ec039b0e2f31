#include "services/loadtest/arrivals/trace.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

#include "common/base/status_macros.h"
#include "common/eval/json_lines.h"
#include "common/text/bounded_json.h"
#include "services/loadtest/arrivals/arrival_schedule.h"

namespace baton::loadtest {
namespace {

constexpr size_t kMaxEntries = 10'000'000;
constexpr int64_t kMaxTokens = 1 << 26;
constexpr int64_t kMaxMilliseconds = int64_t{1} << 40;
constexpr text::JsonLimits kLimits = {
    .max_bytes = 16 << 20, .max_depth = 4, .max_members = 1 << 10};

absl::StatusOr<int64_t> CountField(const nlohmann::json& object,
                                   const char* name,
                                   int64_t least,
                                   int64_t most) {
  const auto field = object.find(name);
  if (field == object.end() || !field->is_number()) {
    return absl::InvalidArgumentError(absl::StrCat("field `", name, "` must be a number"));
  }
  const auto value = field->get<double>();
  if (!(value >= static_cast<double>(least) && value <= static_cast<double>(most))) {
    return absl::InvalidArgumentError(
        absl::StrCat("field `", name, "` must be from ", least, " to ", most));
  }
  return static_cast<int64_t>(value);
}

absl::StatusOr<std::vector<uint64_t>> Blocks(const nlohmann::json& object) {
  const auto field = object.find("hash_ids");
  if (field == object.end()) {
    return std::vector<uint64_t>();
  }
  const auto is_id = [](const nlohmann::json& id) { return id.is_number_unsigned(); };
  if (!field->is_array() || !std::ranges::all_of(*field, is_id)) {
    return absl::InvalidArgumentError("field `hash_ids` must be a list of integers >= 0");
  }
  return field->get<std::vector<uint64_t>>();
}

class TraceSchedule final : public ArrivalSchedule {
 public:
  explicit TraceSchedule(const std::vector<TraceEntry>& trace) {
    times_.reserve(trace.size());
    for (const TraceEntry& entry : trace) {
      times_.push_back(entry.at);
    }
  }

  std::optional<absl::Duration> Next() override {
    return next_ < times_.size() ? std::optional(times_[next_++]) : std::nullopt;
  }

 private:
  std::vector<absl::Duration> times_;
  size_t next_ = 0;
};

}  // namespace

absl::StatusOr<TraceEntry> ParseTraceEntry(std::string_view line) {
  BATON_ASSIGN_OR_RETURN(const nlohmann::json object, text::ParseBoundedJson(line, kLimits));
  if (!object.is_object()) {
    return absl::InvalidArgumentError("is not a JSON object");
  }
  TraceEntry entry;
  BATON_ASSIGN_OR_RETURN(const int64_t milliseconds,
                         CountField(object, "timestamp", 0, kMaxMilliseconds));
  entry.at = absl::Milliseconds(milliseconds);
  BATON_ASSIGN_OR_RETURN(entry.input_tokens, CountField(object, "input_length", 1, kMaxTokens));
  BATON_ASSIGN_OR_RETURN(entry.output_tokens, CountField(object, "output_length", 1, kMaxTokens));
  BATON_ASSIGN_OR_RETURN(entry.blocks, Blocks(object));
  return entry;
}

absl::StatusOr<std::vector<TraceEntry>> ReadTrace(const std::string& path, double speed) {
  std::vector<TraceEntry> trace;
  absl::Duration first;
  absl::Duration last;
  BATON_RETURN_IF_ERROR(eval::ForEachLine(path, [&](std::string_view line) -> absl::Status {
    BATON_ASSIGN_OR_RETURN(TraceEntry entry, ParseTraceEntry(line));
    if (trace.empty()) {
      first = entry.at;
    } else if (entry.at < last) {
      return absl::InvalidArgumentError("field `timestamp` is before that of the line above");
    }
    last = entry.at;
    entry.at = (entry.at - first) / speed;
    trace.push_back(std::move(entry));
    return trace.size() <= kMaxEntries
               ? absl::OkStatus()
               : absl::InvalidArgumentError(absl::StrCat("more than ", kMaxEntries, " entries"));
  }));
  if (trace.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path, " holds no entry"));
  }
  return trace;
}

std::unique_ptr<ArrivalSchedule> MakeTraceSchedule(const std::vector<TraceEntry>& trace) {
  return std::make_unique<TraceSchedule>(trace);
}

}  // namespace baton::loadtest
