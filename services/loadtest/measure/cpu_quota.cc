#include "services/loadtest/measure/cpu_quota.h"

#include <cstdint>
#include <fstream>
#include <optional>
#include <string>

namespace baton::loadtest {

std::optional<double> CpuQuota(const std::string& path) {
  std::ifstream file(path);
  int64_t quota = 0;
  int64_t period = 0;
  std::string rest;
  if (!(file >> quota >> period) || file >> rest || quota <= 0 || period <= 0) {
    return std::nullopt;
  }
  return static_cast<double>(quota) / static_cast<double>(period);
}

}  // namespace baton::loadtest
