// What formats that are extended have in common: the extension's own tokens in dense pages.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

#include "common/kv/codec/codec_context.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/step_kv.h"
#include "kernels/ops/params.h"

namespace baton::kv {

// `rows` of an extension for AttendDenseKeys, by stored layer: they see the working keys from
// `first_key` on.
std::vector<kernels::SequenceRows> WorkingRows(const WorkingKv& working,
                                               const PromptRows& rows,
                                               int64_t first_key);

// Causal attention of the rows over keys in dense pages. Writes the rows of queries.out and the
// log-sum-exps, lse[row_count][heads], so that attention over other keys can be merged into both;
// with `merge` it is merged into what is there (kernels/ops/params.h). `op_rows`: those of the
// queries' layer, with the keys that they see, where ops read them. Executor thread.
absl::Status AttendDenseKeys(const CodecContext& context,
                             const kernels::DensePages& pages,
                             const PromptRows& rows,
                             const KvQueries& queries,
                             const kernels::SequenceRows* op_rows,
                             float* lse,
                             bool merge = false);

}  // namespace baton::kv
