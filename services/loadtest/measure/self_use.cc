#include "services/loadtest/measure/self_use.h"

#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"

#include "services/loadtest/measure/cpu_quota.h"

namespace baton::loadtest {

absl::Duration ProcessCpuTime() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return absl::DurationFromTimeval(usage.ru_utime) + absl::DurationFromTimeval(usage.ru_stime);
}

double AvailableCores(const std::string& cpu_max_path) {
  cpu_set_t set;
  CPU_ZERO(&set);
  const double cores =
      sched_getaffinity(0, sizeof(set), &set) == 0 ? std::max(CPU_COUNT(&set), 1) : 1;
  return std::min(cores, CpuQuota(cpu_max_path).value_or(cores));
}

std::vector<std::string> Bottlenecks(const SelfUse& use) {
  std::vector<std::string> reasons;
  const double cores_used =
      use.wall > absl::ZeroDuration() ? absl::FDivDuration(use.cpu, use.wall) : 0.0;
  if (cores_used > kMaxCpuShare * use.cores) {
    reasons.push_back(absl::StrFormat(
        "the load test used %.2f of the %g cores it may use: give it more, or split the load "
        "over several processes",
        cores_used,
        use.cores));
  }
  if (const double late = use.lateness_ms.Quantile(0.99); late > kMaxLatenessMs) {
    reasons.push_back(absl::StrFormat(
        "the load test sent requests late, 99 %% of them by up to %.1f ms: it, or the machine that "
        "it shares, was too busy",
        late));
  }
  return reasons;
}

}  // namespace baton::loadtest
