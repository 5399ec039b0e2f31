// Inference.ListModels.
#pragma once

#include "absl/status/statusor.h"

#include "proto/baton/inference/v1/inference.pb.h"
#include "services/router/router_core.h"

namespace baton::router {

// Every model served: one.
absl::StatusOr<inference::v1::ListModelsResponse> ListModels(const RouterCore& core);

}  // namespace baton::router
