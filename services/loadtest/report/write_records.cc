#include "services/loadtest/report/write_records.h"

#include <algorithm>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/time.h"

#include "common/rpc/status_mapping.h"
#include "services/loadtest/measure/request_figures.h"
#include "services/loadtest/stream/request_record.h"

namespace baton::loadtest {
namespace {

using nlohmann::ordered_json;

double Milliseconds(absl::Duration duration) { return absl::ToDoubleMilliseconds(duration); }

double Milliseconds(const google::protobuf::Duration& duration) {
  return static_cast<double>(duration.seconds()) * 1e3 + duration.nanos() * 1e-6;
}

template <typename T>
ordered_json OrNull(const std::optional<T>& value) {
  return value.has_value() ? ordered_json(*value) : ordered_json();
}

const char* FinishName(inference::v1::FinishReason reason) {
  switch (reason) {
    case inference::v1::FINISH_REASON_STOP:
      return "stop";
    case inference::v1::FINISH_REASON_LENGTH:
      return "length";
    default:
      return "";
  }
}

const char* FaultName(Fault fault) {
  switch (fault) {
    case Fault::kCancel:
      return "cancel";
    case Fault::kSlowReader:
      return "slow_reader";
    case Fault::kNone:
      break;
  }
  return "";
}

void AddUsage(const inference::v1::Usage& usage, ordered_json* row) {
  row->update({{"prompt_tokens", usage.prompt_tokens()},
               {"cached_tokens", usage.cached_tokens()},
               {"completion_tokens", usage.completion_tokens()},
               {"server_queue_ms", Milliseconds(usage.queue_time())},
               {"server_prefill_ms", Milliseconds(usage.prefill_time())},
               {"server_transfer_ms", Milliseconds(usage.transfer_time())},
               {"server_decode_ms", Milliseconds(usage.decode_time())},
               {"server_ttft_ms", Milliseconds(usage.time_to_first_token())},
               {"server_e2e_ms", Milliseconds(usage.total_time())},
               {"kv_logical_bytes", usage.kv_logical_bytes()},
               {"kv_wire_bytes", usage.kv_wire_bytes()},
               {"kv_resident_bytes", usage.kv_resident_bytes()},
               {"transport", usage.transport()},
               {"retries", usage.retries()},
               {"resumes", usage.resumes()}});
}

// Quoted where a comma, a quote or a line break asks for it.
std::string CsvField(const ordered_json& value) {
  if (value.is_null()) {
    return "";
  }
  if (!value.is_string()) {
    return value.dump();
  }
  auto text = value.get<std::string>();
  if (text.find_first_of(",\"\r\n") == std::string::npos) {
    return text;
  }
  return absl::StrCat("\"", absl::StrReplaceAll(text, {{"\"", "\"\""}}), "\"");
}

std::vector<const RequestRecord*> InOrder(const std::vector<RequestRecord>& records) {
  std::vector<const RequestRecord*> ordered;
  ordered.reserve(records.size());
  for (const RequestRecord& record : records) {
    ordered.push_back(&record);
  }
  std::ranges::sort(ordered, {}, &RequestRecord::index);
  return ordered;
}

}  // namespace

ordered_json RecordJson(const RequestRecord& record, bool token_times) {
  ordered_json row = {{"index", record.index},
                      {"request_id", record.request_id},
                      {"conversation", record.conversation},
                      {"turn", record.turn},
                      {"scheduled_ms", Milliseconds(record.scheduled)},
                      {"allowed_ms", Milliseconds(record.allowed)},
                      {"sent_ms", Milliseconds(record.sent)},
                      {"end_ms", Milliseconds(record.end)},
                      {"status", rpc::CodeName(record.code)},
                      {"reason", record.reason},
                      {"error", record.error},
                      {"finish", FinishName(record.finish)},
                      {"fault", FaultName(record.fault)},
                      {"abandoned", record.abandoned},
                      {"correct", OrNull(record.correct)},
                      {"kv_policy", record.kv_policy},
                      {"max_tokens", record.max_tokens},
                      {"tokens", TokenCount(record)},
                      {"ttft_ms", OrNull(TtftMs(record))},
                      {"tpot_ms", OrNull(TpotMs(record))},
                      {"e2e_ms", OrNull(LatencyMs(record))}};
  AddUsage(record.usage, &row);
  if (token_times) {
    ordered_json messages = ordered_json::array();
    for (const TokenMessage& message : record.messages) {
      messages.push_back({message.after_us / 1e3, message.tokens});
    }
    row["messages"] = std::move(messages);
  }
  return row;
}

void WriteJsonLines(const std::vector<RequestRecord>& records,
                    bool token_times,
                    std::ostream& out) {
  for (const RequestRecord* record : InOrder(records)) {
    out << RecordJson(*record, token_times)
               .dump(-1, ' ', false, ordered_json::error_handler_t::replace)
        << '\n';
  }
}

void WriteCsv(const std::vector<RequestRecord>& records, std::ostream& out) {
  const ordered_json columns = RecordJson(RequestRecord(), /*token_times=*/false);
  const char* separator = "";
  for (const auto& [name, value] : columns.items()) {
    out << separator << name;
    separator = ",";
  }
  out << "\r\n";
  for (const RequestRecord* record : InOrder(records)) {
    separator = "";
    const ordered_json row = RecordJson(*record, /*token_times=*/false);
    for (const auto& [name, value] : row.items()) {
      out << separator << CsvField(value);
      separator = ",";
    }
    out << "\r\n";
  }
}

}  // namespace baton::loadtest
