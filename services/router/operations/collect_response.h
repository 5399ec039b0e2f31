// The messages of a stream as one answer.
#pragma once

#include "proto/baton/inference/v1/inference.pb.h"

namespace baton::router {

// Adds the next message of a stream to `response`; choices are by index.
void CollectResponse(inference::v1::GenerateStreamResponse&& message,
                     inference::v1::GenerateResponse* response);

}  // namespace baton::router
