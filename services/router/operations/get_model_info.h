// Inference.GetModelInfo.
#pragma once

#include <string>

#include "absl/status/statusor.h"

#include "proto/baton/inference/v1/inference.pb.h"
#include "services/router/router_core.h"

namespace baton::router {

// What `name` (empty: the only model) can do. kNotFound: another model.
absl::StatusOr<inference::v1::ModelInfo> GetModelInfo(const RouterCore& core,
                                                      const std::string& name);

}  // namespace baton::router
