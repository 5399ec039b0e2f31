// What formats that are extended have in common: the extension's own tokens in dense pages.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"

#include "common/kv/codec/codec_context.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/step_kv.h"

namespace baton::kv {

// Causal attention of the rows over the working keys from `first_key` on. Writes the rows of
// queries.out and the log-sum-exps, lse[row_count][heads], so that attention over the tokens before
// first_key can be merged into both (kernels/ops/params.h). Executor thread.
absl::Status AttendWorkingKeys(const CodecContext& context,
                               const WorkingKv& working,
                               const PromptRows& rows,
                               const KvQueries& queries,
                               int64_t first_key,
                               std::span<float> lse);

// The keys (after RoPE) and values of the working tokens [first, first + count) of a stored layer,
// widened: [count][kv_heads x head_dim] each.
void ReadWorkingTokens(const WorkingKv& working,
                       int32_t kv_layer,
                       int64_t first,
                       int64_t count,
                       std::span<float> keys,
                       std::span<float> values);

}  // namespace baton::kv
