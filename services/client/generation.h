// One request to the router, streamed.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "proto/baton/inference/v1/inference.pb.h"
#include "services/client/connection.h"

namespace baton::client {

// What came of a request that ended well.
struct Generation {
  inference::v1::Started started;
  // One per sequence.
  struct Sequence {
    std::string text;
    std::vector<uint32_t> token_ids;
    inference::v1::Finished finished;
  };
  std::vector<Sequence> sequences;
  inference::v1::Usage usage;
  // By the client's clock: until the first message with a token, and in all.
  absl::Duration time_to_first_token;
  absl::Duration total_time;
};

// Called with every piece of text as it comes.
using OnText = std::function<void(uint32_t index, std::string_view text)>;

// Sends `request` and reads its stream to the end; blocks. The error is readable as it is
// (error_text.h). A stream that ends without its accounting is an error whatever its status.
absl::StatusOr<Generation> Generate(Connection& connection,
                                    const inference::v1::GenerateRequest& request,
                                    const OnText& on_text);

}  // namespace baton::client
