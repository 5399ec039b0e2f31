// What a request has to satisfy before it may wait for anything.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"

#include "common/engine/engine.h"
#include "common/engine/kv_choice.h"
#include "common/engine/request.h"
#include "common/kv/codec/kv_format.h"

namespace baton::engine {

// The fixed limits of an engine. Immutable, so checks may run on any thread.
struct EngineLimits {
  Role role = Role::kBoth;
  int32_t vocab_size = 0;
  int64_t max_sequence_tokens = 0;  // prompt + max_tokens
  int32_t max_running_sequences = 0;
  int64_t max_waiting_tokens = 0;
  int64_t pages_total = 0;
  const kv::KvFormat* format = nullptr;  // dense
  // Of all prompts that are staged for a hand-off; without a value none is.
  std::optional<int64_t> staging_bytes = {};
};

// kInvalidArgument unless the prompt has a token and fits in a sequence (PROMPT_TOO_LONG).
absl::Status CheckPromptLength(const EngineLimits& limits, int64_t prompt_tokens);

// kInvalidArgument naming the field and the limit; PROMPT_TOO_LONG or EXCEEDS_CAPACITY in the
// message of a request that could never fit.
absl::Status CheckGenerateRequest(const EngineLimits& limits,
                                  const KvChoice& kv,
                                  const GenerateRequest& request);
// As above, without what CheckCapacity looks at.
absl::Status CheckReserveRequest(const EngineLimits& limits, const ReserveRequest& request);

// Whether a prompt that does not ship in place can ever be staged for its hand-off.
absl::Status CheckStaging(const EngineLimits& limits, const KvChoice& kv, int64_t prompt_tokens);

// Whether prompt and sampling can ever fit in this engine, however empty it is. Of prefill's
// prompts only their turn shows whether they are staged.
absl::Status CheckCapacity(const EngineLimits& limits,
                           const KvChoice& kv,
                           int64_t prompt_tokens,
                           const SamplingParams& sampling);

}  // namespace baton::engine
