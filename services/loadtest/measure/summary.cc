#include "services/loadtest/measure/summary.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

#include "common/rpc/status_mapping.h"
#include "services/loadtest/measure/distribution.h"
#include "services/loadtest/measure/request_figures.h"
#include "services/loadtest/measure/run_result.h"
#include "services/loadtest/measure/self_use.h"
#include "services/loadtest/measure/slo.h"
#include "services/loadtest/measure/stage_figures.h"
#include "services/loadtest/measure/timeline.h"
#include "services/loadtest/scrape/scraper.h"
#include "services/loadtest/stream/hooks.h"
#include "services/loadtest/stream/request_record.h"

namespace baton::loadtest {
namespace {

using nlohmann::ordered_json;
using Records = std::vector<const RequestRecord*>;

double Milliseconds(const google::protobuf::Duration& duration) {
  return static_cast<double>(duration.seconds()) * 1e3 + duration.nanos() * 1e-6;
}

ordered_json ToJson(const Distribution& values) {
  return {{"count", values.count()},
          {"mean", values.mean()},
          {"min", values.min()},
          {"p50", values.Quantile(0.5)},
          {"p90", values.Quantile(0.9)},
          {"p95", values.Quantile(0.95)},
          {"p99", values.Quantile(0.99)},
          {"p999", values.Quantile(0.999)},
          {"max", values.max()}};
}

// One distribution per figure.
struct Latencies {
  std::map<std::string, Distribution> by_name;

  void Add(const char* name, std::optional<double> value) {
    if (value.has_value()) {
      by_name[name].Add(*value);
    }
  }
  void Add(const RequestRecord& record) {
    Add("ttft", TtftMs(record));
    Add("scheduled_ttft", ScheduledTtftMs(record));
    Add("tpot", TpotMs(record));
    Add("e2e", LatencyMs(record));
    Add("scheduled_e2e", ScheduledLatencyMs(record));
    for (size_t i = 1; i < record.messages.size(); ++i) {
      by_name["itl"].Add((record.messages[i].after_us - record.messages[i - 1].after_us) / 1e3);
    }
    const inference::v1::Usage& usage = record.usage;
    Add("server_queue", Milliseconds(usage.queue_time()));
    Add("server_prefill", Milliseconds(usage.prefill_time()));
    Add("server_transfer", Milliseconds(usage.transfer_time()));
    Add("server_decode", Milliseconds(usage.decode_time()));
    Add("server_ttft", Milliseconds(usage.time_to_first_token()));
    Add("server_e2e", Milliseconds(usage.total_time()));
  }
};

constexpr const char* kLatencies[] = {"ttft",
                                      "scheduled_ttft",
                                      "tpot",
                                      "itl",
                                      "e2e",
                                      "scheduled_e2e",
                                      "server_queue",
                                      "server_prefill",
                                      "server_transfer",
                                      "server_decode",
                                      "server_ttft",
                                      "server_e2e"};
constexpr const char* kCurves[] = {"ttft", "scheduled_ttft", "tpot", "itl", "e2e"};

ordered_json LatencyJson(const Latencies& latencies) {
  ordered_json all = ordered_json::object();
  for (const char* name : kLatencies) {
    const auto found = latencies.by_name.find(name);
    all[name] = ToJson(found == latencies.by_name.end() ? Distribution() : found->second);
  }
  return all;
}

ordered_json CurveJson(const Latencies& latencies) {
  ordered_json all = ordered_json::object();
  for (const char* name : kCurves) {
    const auto found = latencies.by_name.find(name);
    all[name] = found == latencies.by_name.end() ? ordered_json::array()
                                                 : ordered_json(found->second.Curve());
  }
  return all;
}

int64_t CountIf(const Records& records, bool (*wanted)(const RequestRecord&)) {
  return std::ranges::count_if(records, [wanted](const auto* record) { return wanted(*record); });
}

bool IsDisturbed(const RequestRecord& record) { return record.fault != Fault::kNone; }
bool HasFailed(const RequestRecord& record) {
  return !record.ok() && record.fault != Fault::kCancel;
}

// Those of the warm-up left out.
int64_t CountUnsent(const RunResult& run) {
  return std::ranges::count_if(run.unsent,
                               [&run](absl::Duration due) { return due >= run.warmup; });
}

ordered_json RequestJson(const RunResult& run, const Records& counted) {
  return {
      {"sent", counted.size()},
      {"succeeded", CountIf(counted, [](const auto& record) { return record.ok(); })},
      {"failed", CountIf(counted, HasFailed)},
      {"cancelled_on_purpose",
       CountIf(counted,
               [](const auto& record) { return record.fault == Fault::kCancel && !record.ok(); })},
      {"read_slowly",
       CountIf(counted, [](const auto& record) { return record.fault == Fault::kSlowReader; })},
      {"abandoned", CountIf(counted, [](const auto& record) { return record.abandoned; })},
      {"unsent", CountUnsent(run)},
      {"warmup", run.records.size() - counted.size()},
      {"truncated", CountIf(counted, IsTruncated)},
      {"short", CountIf(counted, IsShort)}};
}

// By status code and reason, with one message as an example.
ordered_json ErrorJson(const Records& counted) {
  std::map<std::string, std::pair<int64_t, std::string>> errors;
  for (const RequestRecord* record : counted) {
    if (!record->ok()) {
      const char* note = record->fault == Fault::kCancel ? " (on purpose)"
                         : record->abandoned             ? " (run over)"
                                                         : "";
      auto& [count, example] = errors[absl::StrCat(
          rpc::CodeName(record->code), record->reason.empty() ? "" : " ", record->reason, note)];
      ++count;
      example = record->error;
    }
  }
  ordered_json all = ordered_json::array();
  for (const auto& [status, error] : errors) {
    all.push_back({{"status", status}, {"count", error.first}, {"example", error.second}});
  }
  return all;
}

ordered_json ThroughputJson(const Records& counted, double seconds) {
  int64_t output = 0;
  int64_t prompt = 0;
  int64_t cached = 0;
  int64_t succeeded = 0;
  for (const RequestRecord* record : counted) {
    if (record->ok()) {
      ++succeeded;
      output += TokenCount(*record);
      prompt += record->usage.prompt_tokens();
      cached += record->usage.cached_tokens();
    }
  }
  const auto rate = [seconds](int64_t count) {
    return seconds > 0 ? static_cast<double>(count) / seconds : 0.0;
  };
  return {{"requests_per_s", rate(succeeded)},
          {"output_tokens_per_s", rate(output)},
          {"prompt_tokens_per_s", rate(prompt)},
          {"total_tokens_per_s", rate(prompt + output)},
          {"output_tokens", output},
          {"prompt_tokens", prompt},
          {"cached_prompt_tokens", cached}};
}

// Disturbed requests are left out; those that could not be sent count as bad ones.
ordered_json GoodputJson(const RunResult& run, const Records& counted, double seconds) {
  ordered_json all = ordered_json::array();
  const int64_t asked =
      CountUnsent(run) + static_cast<int64_t>(counted.size()) - CountIf(counted, IsDisturbed);
  for (const Slo& slo : run.slos) {
    const int64_t good = std::ranges::count_if(counted, [&slo](const RequestRecord* record) {
      return !IsDisturbed(*record) && Meets(*record, slo);
    });
    all.push_back(
        {{"slo", slo.name},
         {"ttft_ms", slo.ttft_ms},
         {"tpot_ms", slo.tpot_ms},
         {"good", good},
         {"asked", asked},
         {"share", asked > 0 ? static_cast<double>(good) / static_cast<double>(asked) : 0.0},
         {"requests_per_s", seconds > 0 ? static_cast<double>(good) / seconds : 0.0}});
  }
  return all;
}

ordered_json KvJson(const Records& counted) {
  struct Sums {
    int64_t requests = 0;
    uint64_t logical = 0;
    uint64_t wire = 0;
    uint64_t resident = 0;
    std::string transport;
  };
  std::map<std::string, Sums> by_policy;
  for (const RequestRecord* record : counted) {
    if (record->ok()) {
      Sums& sums = by_policy[record->kv_policy];
      ++sums.requests;
      sums.logical += record->usage.kv_logical_bytes();
      sums.wire += record->usage.kv_wire_bytes();
      sums.resident += record->usage.kv_resident_bytes();
      sums.transport = record->usage.transport();
    }
  }
  ordered_json all = ordered_json::array();
  for (const auto& [policy, sums] : by_policy) {
    all.push_back({{"policy", policy},
                   {"requests", sums.requests},
                   {"logical_bytes", sums.logical},
                   {"wire_bytes", sums.wire},
                   {"resident_bytes", sums.resident},
                   {"transport", sums.transport}});
  }
  return all;
}

ordered_json AnswerJson(const Records& counted) {
  return {
      {"scored", CountIf(counted, [](const auto& record) { return record.correct.has_value(); })},
      {"correct",
       CountIf(counted, [](const auto& record) { return record.correct.value_or(false); })}};
}

ordered_json SelfJson(const RunResult& run) {
  int64_t tokens = 0;
  for (const RequestRecord& record : run.records) {
    tokens += TokenCount(record);
  }
  const double cpu = absl::ToDoubleSeconds(run.self.cpu);
  const double wall = absl::ToDoubleSeconds(run.self.wall);
  return {{"cpu_s", cpu},
          {"cores", run.self.cores},
          {"cores_used", wall > 0 ? cpu / wall : 0.0},
          {"tokens_per_cpu_s", cpu > 0 ? static_cast<double>(tokens) / cpu : 0.0},
          {"lateness_ms", ToJson(run.self.lateness_ms)},
          {"bottlenecks", Bottlenecks(run.self)}};
}

ordered_json ServiceJson(const ScrapedService& service, absl::Time started) {
  ordered_json gauges = ordered_json::array();
  for (const GaugeSample& sample : service.gauges) {
    ordered_json row = sample.values;
    row["t"] = absl::ToDoubleSeconds(sample.at - started);
    gauges.push_back(std::move(row));
  }
  return {{"url", service.url},
          {"failed_scrapes", service.failures},
          {"last_error", service.last_error},
          {"growth", service.growth},
          {"gauges", std::move(gauges)}};
}

ordered_json HookJson(const HookRun& hook) {
  return {
      {"at_s", absl::ToDoubleSeconds(hook.at)}, {"command", hook.command}, {"result", hook.result}};
}

template <typename Items, typename Function>
ordered_json List(const Items& items, const Function& to_json) {
  ordered_json all = ordered_json::array();
  for (const auto& item : items) {
    all.push_back(to_json(item));
  }
  return all;
}

}  // namespace

ordered_json Summarize(const RunResult& run) {
  Records counted;
  Latencies latencies;
  absl::Duration end = run.warmup;
  for (const RequestRecord& record : run.records) {
    if (record.scheduled >= run.warmup) {
      counted.push_back(&record);
      end = std::max(end, record.end);
      if (record.ok() && !IsDisturbed(record)) {
        latencies.Add(record);
      }
    }
  }
  const double seconds = absl::ToDoubleSeconds(end - run.warmup);
  ordered_json summary = {{"format", kSummaryFormat},
                          {"title", run.title},
                          {"started_at", absl::FormatTime(run.started, absl::UTCTimeZone())},
                          {"settings", run.settings},
                          {"warmup_s", absl::ToDoubleSeconds(run.warmup)},
                          {"duration_s", seconds}};
  summary["requests"] = RequestJson(run, counted);
  summary["requests"]["max_open"] = MaxOpen(run.records);
  summary["errors"] = ErrorJson(counted);
  summary["throughput"] = ThroughputJson(counted, seconds);
  summary["latency_ms"] = LatencyJson(latencies);
  summary["goodput"] = GoodputJson(run, counted, seconds);
  summary["stages"] = StageFigures(run);
  summary["kv"] = KvJson(counted);
  summary["answers"] = AnswerJson(counted);
  summary["load_test"] = SelfJson(run);
  summary["curves"] = CurveJson(latencies);
  summary["timeline"] = Timeline(run.records);
  summary["services"] =
      List(run.services, [&run](const auto& service) { return ServiceJson(service, run.started); });
  summary["hooks"] = List(run.hooks, HookJson);
  return summary;
}

}  // namespace baton::loadtest
