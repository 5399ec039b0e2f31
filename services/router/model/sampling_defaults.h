// What generation_config.json says about sampling.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"

namespace baton::router {

// Values for fields that a request leaves unset.
struct SamplingDefaults {
  float temperature = 1.0f;
  float top_p = 1.0f;
  uint32_t top_k = 0;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;
};

// Reads generation_config.json; an empty text gives the defaults above. `do_sample: false` means
// greedy, whatever temperature it names. kInvalidArgument names a field that is out of range.
absl::StatusOr<SamplingDefaults> ParseSamplingDefaults(std::string_view generation_config_json);

}  // namespace baton::router
