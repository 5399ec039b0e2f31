// Inference.Tokenize.
#pragma once

#include "absl/status/status.h"

#include "proto/baton/inference/v1/inference.pb.h"
#include "services/router/model/served_model.h"

namespace baton::router {

// Token ids of a text or a chat. kInvalidArgument or kNotFound say what is wrong. Takes as long as
// the tokenizer: not for a gRPC reaction.
absl::Status Tokenize(const ServedModel& model,
                      const inference::v1::TokenizeRequest& request,
                      inference::v1::TokenizeResponse* response);

}  // namespace baton::router
