#include "services/client/accounting.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "google/protobuf/duration.pb.h"

#include "services/client/generation.h"

namespace baton::client {
namespace {

double Milliseconds(const google::protobuf::Duration& duration) {
  return static_cast<double>(duration.seconds()) * 1e3 + duration.nanos() * 1e-6;
}

void AddTime(const char* name, const google::protobuf::Duration& duration, std::string* table) {
  absl::StrAppendFormat(table, "  %-22s %12.1f ms\n", name, Milliseconds(duration));
}

void AddCount(const char* name, uint64_t count, const char* unit, std::string* table) {
  absl::StrAppendFormat(table, "  %-22s %12d %s\n", name, count, unit);
}

}  // namespace

std::string AccountingTable(const Generation& generation) {
  const inference::v1::Usage& usage = generation.usage;
  std::string table = absl::StrCat("request ", generation.started.request_id(), "\n");
  AddCount("prompt", usage.prompt_tokens(), "tokens", &table);
  AddCount("cached prompt", usage.cached_tokens(), "tokens", &table);
  AddCount("completion", usage.completion_tokens(), "tokens", &table);
  AddTime("queue", usage.queue_time(), &table);
  AddTime("prefill", usage.prefill_time(), &table);
  AddTime("transfer", usage.transfer_time(), &table);
  AddTime("decode", usage.decode_time(), &table);
  AddTime("time to first token", usage.time_to_first_token(), &table);
  AddTime("total", usage.total_time(), &table);
  AddCount("KV logical", usage.kv_logical_bytes(), "bytes", &table);
  AddCount("KV on the wire", usage.kv_wire_bytes(), "bytes", &table);
  AddCount("KV resident", usage.kv_resident_bytes(), "bytes", &table);
  absl::StrAppendFormat(&table, "  %-22s %12s\n", "KV format", usage.kv_format());
  absl::StrAppendFormat(&table,
                        "  %-22s %12s\n",
                        "transport",
                        usage.transport().empty() ? "none" : usage.transport());
  AddCount("retries", usage.retries(), "", &table);
  return table;
}

}  // namespace baton::client
