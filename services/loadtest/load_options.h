// One load: what, when and against whom.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"

#include "common/rpc/tls.h"
#include "services/loadtest/measure/slo.h"
#include "services/loadtest/stream/driver.h"
#include "services/loadtest/stream/hooks.h"
#include "services/loadtest/stream/request_mix.h"

namespace baton::loadtest {

struct ArrivalOptions {
  double rate = 0.0;       // requests per second; 0: not by a rate
  std::string stages;      // of RateProfile::Parse; empty: none
  std::string trace;       // path; empty: none
  double trace_speed = 1;  // > 1: faster
  std::string process = "poisson";
  double burstiness = 1.0;

  bool open_loop() const { return rate > 0.0 || !stages.empty() || !trace.empty(); }
};

struct WorkloadOptions {
  std::string cases;     // paths of evaluation sets, or
  std::string sharegpt;  // path of recorded conversations; both empty: synthetic
  std::string input = "512";
  std::string output = "128";
  bool words = false;
  int64_t prefix_length = 0;
  int64_t prefixes = 1;
  int64_t turns = 1;
  // Unset: as the workload is used to, that is true for synthetic prompts and else false.
  std::optional<bool> ignore_eos;
  bool repeat = false;  // a dataset, from the front
  uint64_t seed = 1;
};

struct LoadOptions {
  std::string router;  // host:port
  rpc::TlsOptions tls;
  int connections = 1;
  absl::Duration connect_timeout = absl::Seconds(10);
  ArrivalOptions arrivals;
  WorkloadOptions workload;
  DriverOptions driver;
  RequestMixOptions mix;
  std::vector<Hook> hooks;
  absl::Duration warmup;
  std::vector<Slo> slos;
  std::vector<std::string> metrics_urls;
  absl::Duration metrics_interval = absl::Seconds(2);
  std::string title;
  nlohmann::ordered_json settings;  // for the report
};

// kInvalidArgument says what contradicts or is missing: a load without arrivals or without an end,
// two workloads at once.
absl::Status Validate(const LoadOptions& options);

}  // namespace baton::loadtest
