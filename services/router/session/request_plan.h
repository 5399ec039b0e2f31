// A request as the router will run it: validated, tokenized, every default filled in.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/time/time.h"

#include "common/rpc/request_metadata.h"
#include "common/trace/call_span.h"
#include "proto/baton/worker/v1/sampling.pb.h"
#include "services/router/session/sequence_output.h"

namespace baton::router {

struct RequestPlan {
  std::string request_id;
  // Name under which the model is served.
  std::string model;
  // The prompt as workers take it: little-endian int32. Shared with the calls that send it.
  std::shared_ptr<const std::string> prompt_token_ids;
  uint32_t prompt_tokens = 0;
  worker::v1::SamplingParams sampling;
  std::string kv_policy;
  // Decode keeps the KV in its dense pages (PairNeeds::dense).
  bool dense_kv = true;
  std::string session_id;  // of the conversation; empty: none
  OutputOptions output;
  absl::Time received;
  // When the router gives up; a little before the client does, so that the client learns the phase.
  absl::Time deadline = absl::InfiniteFuture();
  // Passed on to workers.
  rpc::RequestMetadata metadata;
  trace::CallSpan span;

  // Prompt and every token that may follow.
  int64_t total_tokens() const {
    return int64_t{prompt_tokens} + int64_t{sampling.n()} * int64_t{sampling.max_tokens()};
  }
};

}  // namespace baton::router
