// A request as a span, with the stages of its timeline.
#pragma once

#include "absl/status/status.h"

#include "proto/baton/inference/v1/inference.pb.h"
#include "services/router/session/request_plan.h"
#include "services/router/session/timeline.h"

namespace baton::router {

// Generate and GenerateStream, as log lines and spans call both.
inline constexpr char kGenerateRpc[] = "baton.inference.v1.Inference/Generate";

// Ends the span of a request that has ended. Does nothing where its trace is not sampled.
void EndSpan(const RequestPlan& plan,
             const absl::Status& status,
             const Timeline& timeline,
             const inference::v1::Usage& usage);

}  // namespace baton::router
