#include "services/loadtest/measure/slo.h"

#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "common/base/status_macros.h"
#include "services/loadtest/measure/request_figures.h"
#include "services/loadtest/stream/request_record.h"

namespace baton::loadtest {
namespace {

struct OperatingPoint {
  std::string_view name;
  double ttft_ms;
  double tpot_ms;
};

// The first two: mlcommons/inference, loadgen/mlperf.conf, llama3_1-8b and llama3_1-8b-interactive.
constexpr std::array<OperatingPoint, 3> kOperatingPoints = {
    {{"server", 2000, 100}, {"interactive", 500, 30}, {"long-context", 1500, 30}}};

absl::StatusOr<Slo> ParseSlo(const std::string& text) {
  for (const OperatingPoint& point : kOperatingPoints) {
    if (point.name == text) {
      return Slo{.name = text, .ttft_ms = point.ttft_ms, .tpot_ms = point.tpot_ms};
    }
  }
  const std::vector<std::string> limits = absl::StrSplit(text, '/');
  Slo slo{.name = text};
  if (limits.size() != 2 || !absl::SimpleAtod(limits[0], &slo.ttft_ms) ||
      !absl::SimpleAtod(limits[1], &slo.tpot_ms) || !(slo.ttft_ms > 0 && slo.tpot_ms > 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("SLO \"",
                     text,
                     "\" is none of server, interactive, long-context and not TTFT/TPOT in "
                     "milliseconds, such as 800/40"));
  }
  return slo;
}

}  // namespace

absl::StatusOr<std::vector<Slo>> ParseSlos(std::string_view text) {
  std::vector<Slo> slos;
  const std::string whole(text);
  for (const absl::string_view part : absl::StrSplit(whole, ',')) {
    BATON_ASSIGN_OR_RETURN(Slo slo, ParseSlo(std::string(part)));
    slos.push_back(std::move(slo));
  }
  return slos;
}

bool Meets(const RequestRecord& record, const Slo& slo) {
  const auto ttft = ScheduledTtftMs(record);
  return record.ok() && ttft.has_value() && *ttft <= slo.ttft_ms &&
         TpotMs(record).value_or(0.0) <= slo.tpot_ms;
}

}  // namespace baton::loadtest
