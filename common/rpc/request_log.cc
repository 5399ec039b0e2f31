#include "common/rpc/request_log.h"

#include <algorithm>
#include <cctype>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "spdlog/spdlog.h"

#include "common/rpc/status_details.h"
#include "common/rpc/status_mapping.h"

namespace baton::rpc {
namespace {

constexpr size_t kMaxValueBytes = 512;

bool Plain(std::string_view value) {
  return !value.empty() && std::all_of(value.begin(), value.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           std::string_view("._-:/+").find(c) != std::string_view::npos;
  });
}

void Append(std::string& line, std::string_view key, std::string_view value) {
  const std::string cut(value.substr(0, kMaxValueBytes));
  absl::StrAppend(&line, " ", std::string(key), "=");
  if (Plain(cut)) {
    line.append(cut);
  } else {
    absl::StrAppend(&line, "\"", absl::CHexEscape(cut), "\"");
  }
}

}  // namespace

std::string FormatRequestLog(const RequestLogEntry& entry) {
  std::string line = "request";
  Append(line, "rpc", entry.rpc);
  Append(line, "request_id", entry.request_id);
  if (!entry.traceparent.empty()) {
    Append(line, "traceparent", entry.traceparent);
  }
  Append(line, "code", CodeName(entry.status.code()));
  if (const std::string reason = ReasonOf(entry.status); !reason.empty()) {
    Append(line, "reason", reason);
  }
  if (!entry.status.ok()) {
    Append(line, "message", {entry.status.message().data(), entry.status.message().size()});
  }
  absl::StrAppend(&line, " duration_ms=", absl::ToInt64Milliseconds(entry.duration));
  for (const auto& [name, count] : entry.counts) {
    absl::StrAppend(&line, " ", std::string(name), "=", count);
  }
  return line;
}

void LogRequest(const RequestLogEntry& entry) {
  const absl::StatusCode code = entry.status.code();
  const bool ours = code == absl::StatusCode::kInternal || code == absl::StatusCode::kDataLoss ||
                    code == absl::StatusCode::kUnknown;
  spdlog::log(ours ? spdlog::level::warn : spdlog::level::info, "{}", FormatRequestLog(entry));
}

}  // namespace baton::rpc
