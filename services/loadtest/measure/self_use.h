// How much of the machine the load test itself takes.
#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"

#include "services/loadtest/measure/cpu_quota.h"
#include "services/loadtest/measure/distribution.h"

namespace baton::loadtest {

// CPU time that this process has used so far, user and system.
absl::Duration ProcessCpuTime();
// Cores that this process may use: those that it may run on or, where that is less, the quota of
// the cgroup v2 file at `cpu_max_path`, which need not be whole. More than 0.
double AvailableCores(const std::string& cpu_max_path = kCpuMaxPath);

// What tells whether the figures are the server's or the load test's own.
struct SelfUse {
  absl::Duration wall;
  absl::Duration cpu;
  double cores = 1.0;
  Distribution lateness_ms;  // one per request
};

// Reasons to distrust a run's figures; empty where the load test kept up: it used less than
// kMaxCpuShare of its cores, and was late by less than kMaxLatenessMs in 99 % of requests.
std::vector<std::string> Bottlenecks(const SelfUse& use);

inline constexpr double kMaxCpuShare = 0.8;
inline constexpr double kMaxLatenessMs = 10.0;

}  // namespace baton::loadtest
