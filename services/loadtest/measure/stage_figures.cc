#include "services/loadtest/measure/stage_figures.h"

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"

#include "services/loadtest/arrivals/rate_profile.h"
#include "services/loadtest/measure/distribution.h"
#include "services/loadtest/measure/request_figures.h"
#include "services/loadtest/measure/run_result.h"
#include "services/loadtest/measure/slo.h"
#include "services/loadtest/stream/request_record.h"

namespace baton::loadtest {
namespace {

using nlohmann::ordered_json;

struct StageSums {
  int64_t due = 0;
  int64_t succeeded = 0;
  Distribution ttft;
  Distribution tpot;
  Distribution itl;
  std::map<std::string, int64_t> good;

  void Add(const RequestRecord& record, const std::vector<Slo>& slos) {
    ++due;
    if (!record.ok()) {
      return;
    }
    ++succeeded;
    if (const auto value = ScheduledTtftMs(record); value.has_value()) {
      ttft.Add(*value);
    }
    if (const auto value = TpotMs(record); value.has_value()) {
      tpot.Add(*value);
    }
    for (size_t i = 1; i < record.messages.size(); ++i) {
      itl.Add((record.messages[i].after_us - record.messages[i - 1].after_us) / 1e3);
    }
    for (const Slo& slo : slos) {
      good[slo.name] += Meets(record, slo) ? 1 : 0;
    }
  }
};

ordered_json ToJson(const Stage& stage, absl::Duration from, const StageSums& sums) {
  ordered_json good = ordered_json::object();
  for (const auto& [slo, count] : sums.good) {
    good[slo] = static_cast<double>(count) / static_cast<double>(sums.due);
  }
  return {{"from_s", absl::ToDoubleSeconds(from)},
          {"to_s", absl::ToDoubleSeconds(from + stage.length)},
          {"rate", stage.begin_rate},
          {"end_rate", stage.end_rate},
          {"due", sums.due},
          {"succeeded", sums.succeeded},
          {"failed", sums.due - sums.succeeded},
          {"ttft_p50", sums.ttft.Quantile(0.5)},
          {"ttft_p99", sums.ttft.Quantile(0.99)},
          {"tpot_p99", sums.tpot.Quantile(0.99)},
          {"itl_p99", sums.itl.Quantile(0.99)},
          {"good", std::move(good)}};
}

}  // namespace

ordered_json StageFigures(const RunResult& run) {
  ordered_json all = ordered_json::array();
  absl::Duration from;
  for (const Stage& stage : run.stages) {
    StageSums sums;
    for (const RequestRecord& record : run.records) {
      if (record.scheduled >= from && record.scheduled < from + stage.length &&
          record.fault == Fault::kNone) {
        sums.Add(record, run.slos);
      }
    }
    all.push_back(ToJson(stage, from, sums));
    from += stage.length;
  }
  return all;
}

}  // namespace baton::loadtest
