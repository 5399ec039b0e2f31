#include "common/model/simulation.h"

#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "common/base/status_macros.h"

namespace baton::model {
namespace {

constexpr double kMaxMilliseconds = 60'000;
constexpr double kMaxTokensPerSecond = 1e12;

absl::Status BadRange(const std::string& key, const std::string& value, const std::string& range) {
  return absl::InvalidArgumentError(
      absl::StrCat("simulation: ", key, " is '", value, "'; it must be a number in ", range));
}

absl::Status SetDuration(const std::string& key,
                         const std::string& value,
                         absl::Duration& duration) {
  double milliseconds = 0;
  if (!absl::SimpleAtod(value, &milliseconds) || !(milliseconds >= 0) ||
      milliseconds > kMaxMilliseconds) {
    return BadRange(key, value, absl::StrCat("[0, ", kMaxMilliseconds, "] ms"));
  }
  duration = absl::Milliseconds(milliseconds);
  return absl::OkStatus();
}

absl::Status SetRate(const std::string& key, const std::string& value, double& rate) {
  double tokens_per_second = 0;
  if (!absl::SimpleAtod(value, &tokens_per_second) || !(tokens_per_second > 0) ||
      tokens_per_second > kMaxTokensPerSecond) {
    return BadRange(key, value, absl::StrCat("(0, ", kMaxTokensPerSecond, "] tokens/s"));
  }
  rate = tokens_per_second;
  return absl::OkStatus();
}

absl::Status Set(const std::string& key, const std::string& value, Simulation& simulation) {
  if (key == "prefill_ms") {
    return SetDuration(key, value, simulation.prefill_step);
  }
  if (key == "prefill_tps") {
    return SetRate(key, value, simulation.prefill_tokens_per_second);
  }
  if (key == "decode_ms") {
    return SetDuration(key, value, simulation.decode_step);
  }
  if (key == "decode_seq_ms") {
    return SetDuration(key, value, simulation.decode_sequence);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "simulation: '",
      key,
      "' is no key; there are prefill_ms, prefill_tps, decode_ms and decode_seq_ms, each with "
      "'=number'"));
}

}  // namespace

absl::Duration Simulation::StepTime(int64_t prompt_tokens, int64_t decode_sequences) const {
  absl::Duration time;
  if (prompt_tokens > 0) {
    time += prefill_step +
            absl::Seconds(static_cast<double>(prompt_tokens) / prefill_tokens_per_second);
  }
  if (decode_sequences > 0) {
    time += decode_step + decode_sequences * decode_sequence;
  }
  return time;
}

absl::StatusOr<Simulation> ParseSimulation(std::string_view text) {
  Simulation simulation;
  if (text == "default") {
    return simulation;
  }
  std::set<std::string> seen;
  const std::vector<std::string> entries = absl::StrSplit(std::string(text), ',');
  for (const std::string& entry : entries) {
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(entry, absl::MaxSplits('=', 1));
    BATON_RETURN_IF_ERROR(Set(parts.first, parts.second, simulation));
    if (!seen.insert(parts.first).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("simulation: ", parts.first, " is there twice"));
    }
  }
  return simulation;
}

}  // namespace baton::model
