#include "common/metrics/process_start.h"

#include <unistd.h>

#include <ctime>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>

namespace baton::metrics {
namespace {

// proc(5): `starttime` is field 22 of /proc/self/stat; field 2, in brackets, may hold spaces.
constexpr int kFieldsBehindName = 20;

std::optional<double> TicksSinceBoot() {
  std::ifstream file("/proc/self/stat");
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) {
    return std::nullopt;
  }
  std::istringstream fields(text.substr(name_end + 1));
  std::string field;
  for (int i = 0; i < kFieldsBehindName; ++i) {
    fields >> field;
  }
  double ticks = 0;
  return std::istringstream(field) >> ticks ? std::optional(ticks) : std::nullopt;
}

std::optional<double> BootSeconds() {
  std::ifstream file("/proc/stat");
  std::string word;
  double seconds = 0;
  while (file >> word) {
    if (word == "btime" && file >> seconds) {
      return seconds;
    }
  }
  return std::nullopt;
}

double ReadStartSeconds() {
  const std::optional<double> ticks = TicksSinceBoot();
  const std::optional<double> boot = BootSeconds();
  if (!ticks.has_value() || !boot.has_value()) {
    return static_cast<double>(std::time(nullptr));
  }
  return *boot + *ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
}

}  // namespace

double ProcessStartSeconds() {
  static const double kSeconds = ReadStartSeconds();
  return kSeconds;
}

}  // namespace baton::metrics
