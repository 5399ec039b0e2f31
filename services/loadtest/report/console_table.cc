#include "services/loadtest/report/console_table.h"

#include <cstdint>
#include <string>

#include "absl/strings/str_format.h"

namespace baton::loadtest {
namespace {

using nlohmann::ordered_json;

double Number(const ordered_json& object, const char* name) {
  return object.at(name).get<double>();
}
int64_t Count(const ordered_json& object, const char* name) {
  return object.at(name).get<int64_t>();
}

void AddRequests(const ordered_json& summary, std::string* table) {
  const ordered_json& requests = summary.at("requests");
  absl::StrAppendFormat(table,
                        "%d requests in %.1f s: %d succeeded, %d failed",
                        Count(requests, "sent"),
                        Number(summary, "duration_s"),
                        Count(requests, "succeeded"),
                        Count(requests, "failed"));
  const auto add = [&](const char* name, const char* text) {
    if (const int64_t count = Count(requests, name); count > 0) {
      absl::StrAppendFormat(table, ", %d %s", count, text);
    }
  };
  add("cancelled_on_purpose", "cancelled on purpose");
  add("read_slowly", "read slowly on purpose");
  add("unsent", "held back to the end by the concurrency limit");
  add("truncated", "cut by max_tokens");
  add("short", "shorter than asked");
  add("warmup", "of the warm-up not counted");
  absl::StrAppendFormat(table, "; at most %d open\n", Count(requests, "max_open"));
  for (const ordered_json& error : summary.at("errors")) {
    absl::StrAppendFormat(table,
                          "  %6d x %s: %s\n",
                          Count(error, "count"),
                          error.at("status").get<std::string>(),
                          error.at("example").get<std::string>());
  }
}

void AddThroughput(const ordered_json& throughput, std::string* table) {
  absl::StrAppendFormat(table,
                        "%.2f requests/s, %.1f output tokens/s, %.1f prompt tokens/s\n\n",
                        Number(throughput, "requests_per_s"),
                        Number(throughput, "output_tokens_per_s"),
                        Number(throughput, "prompt_tokens_per_s"));
}

void AddLatencies(const ordered_json& latencies, std::string* table) {
  absl::StrAppendFormat(table,
                        "%-15s %9s %9s %9s %9s %9s %9s %9s\n",
                        "ms",
                        "count",
                        "mean",
                        "p50",
                        "p90",
                        "p95",
                        "p99",
                        "max");
  for (const auto& [name, values] : latencies.items()) {
    if (Count(values, "count") > 0) {
      absl::StrAppendFormat(table,
                            "%-15s %9d %9.2f %9.2f %9.2f %9.2f %9.2f %9.2f\n",
                            name,
                            Count(values, "count"),
                            Number(values, "mean"),
                            Number(values, "p50"),
                            Number(values, "p90"),
                            Number(values, "p95"),
                            Number(values, "p99"),
                            Number(values, "max"));
    }
  }
}

void AddGoodput(const ordered_json& goodput, std::string* table) {
  for (const ordered_json& slo : goodput) {
    absl::StrAppendFormat(table,
                          "goodput %s (%g/%g ms): %.2f requests/s, %.2f %% of %d requests\n",
                          slo.at("slo").get<std::string>(),
                          Number(slo, "ttft_ms"),
                          Number(slo, "tpot_ms"),
                          Number(slo, "requests_per_s"),
                          100 * Number(slo, "share"),
                          Count(slo, "asked"));
  }
}

void AddStages(const ordered_json& stages, std::string* table) {
  for (const ordered_json& stage : stages) {
    absl::StrAppendFormat(table,
                          "stage %g to %g s, %g to %g requests/s: %d due, %d failed, %d held back; "
                          "p99 TTFT %.1f ms, TPOT %.2f ms\n",
                          Number(stage, "from_s"),
                          Number(stage, "to_s"),
                          Number(stage, "rate"),
                          Number(stage, "end_rate"),
                          Count(stage, "due"),
                          Count(stage, "failed"),
                          Count(stage, "unsent"),
                          Number(stage, "ttft_p99"),
                          Number(stage, "tpot_p99"));
  }
}

void AddRest(const ordered_json& summary, std::string* table) {
  for (const ordered_json& kv : summary.at("kv")) {
    absl::StrAppendFormat(table,
                          "KV %s: %d requests, %.1f MiB logical, %.1f MiB on the wire\n",
                          kv.at("policy").get<std::string>(),
                          Count(kv, "requests"),
                          Number(kv, "logical_bytes") / (1 << 20),
                          Number(kv, "wire_bytes") / (1 << 20));
  }
  if (const ordered_json& answers = summary.at("answers"); Count(answers, "scored") > 0) {
    absl::StrAppendFormat(
        table, "answers: %d of %d right\n", Count(answers, "correct"), Count(answers, "scored"));
  }
  const ordered_json& self = summary.at("load_test");
  absl::StrAppendFormat(table,
                        "load test: %.2f of %g cores, %.0f tokens per CPU second, late by %.2f ms "
                        "(p99)\n",
                        Number(self, "cores_used"),
                        Number(self, "cores"),
                        Number(self, "tokens_per_cpu_s"),
                        Number(self.at("lateness_ms"), "p99"));
  for (const ordered_json& reason : self.at("bottlenecks")) {
    absl::StrAppendFormat(table, "WARNING: %s\n", reason.get<std::string>());
  }
}

}  // namespace

std::string ConsoleTable(const ordered_json& summary) {
  std::string table;
  AddRequests(summary, &table);
  AddThroughput(summary.at("throughput"), &table);
  AddLatencies(summary.at("latency_ms"), &table);
  table += '\n';
  AddGoodput(summary.at("goodput"), &table);
  AddStages(summary.at("stages"), &table);
  AddRest(summary, &table);
  return table;
}

}  // namespace baton::loadtest
