// What varies from request to request besides prompt and length.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "services/loadtest/stream/request_record.h"
#include "services/loadtest/stream/stream_call.h"
#include "services/loadtest/workload/weighted_choice.h"

namespace baton::loadtest {

struct RequestMixOptions {
  std::string kv_policies = {};  // "dense@3;diffkv@1"; empty: the server's default
  std::string deadlines = {};    // "none@9;2s@1"; empty: none
  double cancel_share = 0.0;     // of the requests, cancelled ...
  absl::Duration cancel_within = absl::Seconds(1);  // ... at a moment up to this after sending
  double slow_share = 0.0;                          // of the requests, read slowly ...
  absl::Duration slow_delay = {};                   // ... with this pause before every message
  uint64_t seed = 1;
};

// What was drawn for one request.
struct RequestTraits {
  std::string kv_policy;
  absl::Duration deadline = absl::InfiniteDuration();
  Fault fault = Fault::kNone;
  CallFaults faults = {};
};

// Immutable and thread-safe.
class RequestMix {
 public:
  // kInvalidArgument names the part that is wrong.
  static absl::StatusOr<RequestMix> Make(const RequestMixOptions& options);

  // Of the `index`-th request; the same for the same options, whatever was drawn before.
  RequestTraits Draw(int64_t index) const;

 private:
  RequestMix(RequestMixOptions options, WeightedChoice kv_policies, WeightedChoice deadlines);

  RequestMixOptions options_;
  WeightedChoice kv_policies_;
  WeightedChoice deadlines_;
};

}  // namespace baton::loadtest
