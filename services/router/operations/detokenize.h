// Inference.Detokenize.
#pragma once

#include "absl/status/status.h"

#include "proto/baton/inference/v1/inference.pb.h"
#include "services/router/model/served_model.h"

namespace baton::router {

// Text of token ids. kInvalidArgument names an id outside the vocabulary; kNotFound: the model.
absl::Status Detokenize(const ServedModel& model,
                        const inference::v1::DetokenizeRequest& request,
                        inference::v1::DetokenizeResponse* response);

}  // namespace baton::router
