// All that a run left behind.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "nlohmann/json.hpp"

#include "services/loadtest/arrivals/rate_profile.h"
#include "services/loadtest/measure/self_use.h"
#include "services/loadtest/measure/slo.h"
#include "services/loadtest/scrape/scraper.h"
#include "services/loadtest/stream/hooks.h"
#include "services/loadtest/stream/request_record.h"

namespace baton::loadtest {

struct RunResult {
  std::string title;
  nlohmann::ordered_json settings;  // flags, for the reader of the report
  absl::Time started;
  absl::Duration warmup;  // requests due before are left out of every figure
  std::vector<RequestRecord> records;
  std::vector<Stage> stages;  // of the arrivals; empty: none
  bool stopped = false;       // by a signal, before its end
  // When the requests were due that the concurrency limit kept from being sent.
  std::vector<absl::Duration> unsent;
  std::vector<Slo> slos;
  SelfUse self;
  std::vector<ScrapedService> services;
  std::vector<HookRun> hooks;
};

}  // namespace baton::loadtest
