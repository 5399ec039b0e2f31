#include "services/loadtest/measure/stage_figures.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
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
  int64_t unsent = 0;
  int64_t succeeded = 0;
  Distribution ttft;
  Distribution tpot;
  Distribution itl;
  std::map<std::string, int64_t> good;

  void AddUnsent() {
    ++due;
    ++unsent;
  }
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

// By SLO; empty where nothing was due.
ordered_json Shares(const StageSums& sums, const std::vector<Slo>& slos) {
  ordered_json good = ordered_json::object();
  for (const Slo& slo : slos) {
    if (sums.due > 0) {
      const auto count = sums.good.find(slo.name);
      good[slo.name] = count == sums.good.end()
                           ? 0.0
                           : static_cast<double>(count->second) / static_cast<double>(sums.due);
    }
  }
  return good;
}

ordered_json ToJson(const Stage& stage,
                    absl::Duration from,
                    const StageSums& sums,
                    const std::vector<Slo>& slos) {
  return {{"from_s", absl::ToDoubleSeconds(from)},
          {"to_s", absl::ToDoubleSeconds(from + stage.length)},
          {"rate", stage.begin_rate},
          {"end_rate", stage.end_rate},
          {"due", sums.due},
          {"succeeded", sums.succeeded},
          {"failed", sums.due - sums.unsent - sums.succeeded},
          {"unsent", sums.unsent},
          {"ttft_p50", sums.ttft.Quantile(0.5)},
          {"ttft_p99", sums.ttft.Quantile(0.99)},
          {"tpot_p99", sums.tpot.Quantile(0.99)},
          {"itl_p99", sums.itl.Quantile(0.99)},
          {"good", Shares(sums, slos)}};
}

}  // namespace

ordered_json StageFigures(const RunResult& run) {
  ordered_json all = ordered_json::array();
  absl::Duration from;
  for (const Stage& stage : run.stages) {
    const auto counts = [begin = std::max(from, run.warmup), end = from + stage.length](
                            absl::Duration due) { return due >= begin && due < end; };
    StageSums sums;
    for (const RequestRecord& record : run.records) {
      if (counts(record.scheduled) && record.fault == Fault::kNone) {
        sums.Add(record, run.slos);
      }
    }
    for (const absl::Duration due : run.unsent) {
      if (counts(due)) {
        sums.AddUnsent();
      }
    }
    all.push_back(ToJson(stage, from, sums, run.slos));
    from += stage.length;
  }
  return all;
}

}  // namespace baton::loadtest
