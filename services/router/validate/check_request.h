// Checks of a request that need no tokenizer: ranges, counts, what is not offered.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "proto/baton/inference/v1/inference.pb.h"
#include "services/router/model/served_model.h"

namespace baton::router {

inline constexpr uint32_t kMaxSequences = 64;      // n
inline constexpr uint32_t kMaxTopLogprobs = 20;    // as OpenAI's API
inline constexpr int kMaxLogitBias = 1024;         // entries
inline constexpr int kMaxStopTokenIds = 128;       // entries
inline constexpr float kMaxPenalty = 2.0f;         // presence and frequency, as OpenAI's API
inline constexpr size_t kMaxRequestIdBytes = 256;  // and of a session_id
inline constexpr int kMaxMessages = 4096;          // of a chat

// kNotFound: `name` is not the served model's (an empty one is).
absl::Status CheckModelName(const ServedModel& model, const std::string& name);

// What workers are asked for: the default for an empty policy, else the text as it is, because the
// workers' calibration decides what keys are that it leaves out, and even one that repeats the
// grammar's default says something. kInvalidArgument for text that is no policy and for baselines
// of the lab. Whether workers serve it they say themselves.
absl::StatusOr<std::string> CheckedKvPolicy(const std::string& kv_policy);

// kInvalidArgument with one violation per wrong field, or one of the two above.
absl::Status CheckRequest(const ServedModel& model, const inference::v1::GenerateRequest& request);

// Of requests that name none: exact.
inline constexpr char kDefaultKvPolicy[] = "dense";

}  // namespace baton::router
