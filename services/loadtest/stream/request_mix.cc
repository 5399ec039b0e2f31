#include "services/loadtest/stream/request_mix.h"

#include <cstdint>
#include <random>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

#include "common/base/status_macros.h"
#include "services/loadtest/stream/request_record.h"
#include "services/loadtest/workload/weighted_choice.h"

namespace baton::loadtest {
namespace {

absl::StatusOr<absl::Duration> ParseDeadline(const std::string& text) {
  absl::Duration deadline = absl::InfiniteDuration();
  if (!text.empty() && text != "none" &&
      (!absl::ParseDuration(text, &deadline) || deadline <= absl::ZeroDuration())) {
    return absl::InvalidArgumentError(
        absl::StrCat("deadline \"", text, "\" is neither `none` nor a duration > 0 such as 2s"));
  }
  return deadline;
}

absl::Status CheckShares(const RequestMixOptions& options) {
  const bool valid = options.cancel_share >= 0.0 && options.slow_share >= 0.0 &&
                     options.cancel_share + options.slow_share <= 1.0;
  return valid ? absl::OkStatus()
               : absl::InvalidArgumentError(
                     "shares of cancelled and of slow requests must be from 0 to 1, also together");
}

}  // namespace

RequestMix::RequestMix(RequestMixOptions options,
                       WeightedChoice kv_policies,
                       WeightedChoice deadlines)
    : options_(std::move(options)),
      kv_policies_(std::move(kv_policies)),
      deadlines_(std::move(deadlines)) {}

absl::StatusOr<RequestMix> RequestMix::Make(const RequestMixOptions& options) {
  BATON_RETURN_IF_ERROR(CheckShares(options));
  BATON_ASSIGN_OR_RETURN(WeightedChoice kv_policies, WeightedChoice::Parse(options.kv_policies));
  BATON_ASSIGN_OR_RETURN(WeightedChoice deadlines, WeightedChoice::Parse(options.deadlines));
  for (const std::string& deadline : deadlines.values()) {
    BATON_RETURN_IF_ERROR(ParseDeadline(deadline).status());
  }
  return RequestMix(options, std::move(kv_policies), std::move(deadlines));
}

RequestTraits RequestMix::Draw(int64_t index) const {
  std::seed_seq seed{static_cast<uint32_t>(options_.seed),
                     static_cast<uint32_t>(options_.seed >> 32),
                     static_cast<uint32_t>(index)};
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> uniform(0.0, 1.0);
  RequestTraits traits{.kv_policy = kv_policies_.Sample(random)};
  traits.deadline = ParseDeadline(deadlines_.Sample(random)).value_or(absl::InfiniteDuration());
  const double drawn = uniform(random);
  if (drawn < options_.cancel_share) {
    traits.fault = Fault::kCancel;
    traits.faults.cancel_after = options_.cancel_within * uniform(random);
  } else if (drawn < options_.cancel_share + options_.slow_share) {
    traits.fault = Fault::kSlowReader;
    traits.faults.read_delay = options_.slow_delay;
  }
  return traits;
}

}  // namespace baton::loadtest
