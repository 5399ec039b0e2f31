// From a client's request to a plan: checks, tokens, defaults.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "proto/baton/inference/v1/inference.pb.h"
#include "services/router/model/served_model.h"
#include "services/router/session/request_plan.h"
#include "services/router/workers/worker_set.h"

namespace baton::router {

struct PrepareOptions {
  uint32_t default_max_tokens = 512;
  // Of the workers known now.
  WorkerLimits worker_limits;
};

// Tokens that prompt and output may have together: the model's context, or less if workers hold
// less.
uint32_t ContextTokens(const ServedModel& model, const WorkerLimits& limits);

// The plan of `request`, request id, metadata and times left to the caller. kInvalidArgument
// (reason PROMPT_TOO_LONG or EXCEEDS_CAPACITY where it applies) or kNotFound say what is wrong.
// Draws a seed when none is given. Time is that of the tokenizer. Thread-safe.
absl::StatusOr<RequestPlan> PrepareRequest(const ServedModel& model,
                                           const PrepareOptions& options,
                                           const inference::v1::GenerateRequest& request,
                                           absl::Time now);

// Every sampling field filled in: the request's, else the model's, else the defaults.
worker::v1::SamplingParams ResolveSampling(const ServedModel& model,
                                           const inference::v1::GenerateRequest& request,
                                           uint32_t max_tokens);

}  // namespace baton::router
