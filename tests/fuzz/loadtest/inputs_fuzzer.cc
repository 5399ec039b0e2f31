// Gives arbitrary bytes to everything of a load test that reads text from outside: datasets,
// traces, scrapes, hooks and the values of flags. Nothing may crash or hang, and what is accepted
// has to stay within its bounds.
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string_view>

#include "absl/time/time.h"

#include "services/loadtest/arrivals/rate_profile.h"
#include "services/loadtest/arrivals/trace.h"
#include "services/loadtest/measure/slo.h"
#include "services/loadtest/scrape/exposition.h"
#include "services/loadtest/stream/hooks.h"
#include "services/loadtest/workload/length_distribution.h"
#include "services/loadtest/workload/share_gpt.h"
#include "services/loadtest/workload/weighted_choice.h"

namespace baton::loadtest {
namespace {

void Require(bool condition) {
  if (!condition) {
    std::abort();
  }
}

void ReadFlags(std::string_view text) {
  std::mt19937_64 random(1);
  if (const auto length = LengthDistribution::Parse(text); length.ok()) {
    const int64_t sample = length->Sample(random);
    Require(sample >= 1 && sample <= LengthDistribution::kMaxLength);
  }
  if (const auto choice = WeightedChoice::Parse(text); choice.ok()) {
    Require(!choice->values().empty());
    (void)choice->Sample(random);
  }
  if (const auto profile = RateProfile::Parse(text); profile.ok()) {
    const auto first = profile->TimeOf(0.0);
    Require(first.has_value() && *first >= 0.0);
    Require(*first <= absl::ToDoubleSeconds(profile->length()));
  }
  (void)ParseSlos(text).ok();
}

void ReadAll(std::string_view text) {
  if (const auto entry = ParseTraceEntry(text); entry.ok()) {
    Require(entry->input_tokens >= 1 && entry->output_tokens >= 1);
    Require(entry->at >= absl::ZeroDuration());
  }
  if (const auto conversation = ParseShareGpt(text); conversation.ok()) {
    Require(!conversation->questions.empty());
  }
  const Exposition exposition = ParseExposition(text);
  (void)CounterGrowth(Exposition(), exposition);
  (void)ParseHooks(text).ok();
  ReadFlags(text);
}

}  // namespace
}  // namespace baton::loadtest

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  baton::loadtest::ReadAll(text);
  return 0;
}
