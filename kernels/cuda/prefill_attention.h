// Attention of prompts' rows by cuDNN's kernel of Hopper: what op `paged_attention` does with calls
// of many rows per sequence, which are bound by arithmetic instead of by reading keys.
#pragma once

#include "absl/status/status.h"

#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/ops/params.h"

namespace baton::kernels::cuda {

// Whether a call is one for PrefillAttention, as far as the host sees: enough rows of a sequence,
// every key up to the row's own seen, no results to merge, and sizes that plans are compiled for.
bool IsPrefill(const PagedAttentionParams& params);

// Op `paged_attention` for params that it has checked and that IsPrefill says yes to. The first
// call of a bucket of sizes compiles its plan (AttentionPlans). kUnimplemented, with nothing done,
// where there is no cuDNN or it has no kernel of Hopper for these pages; kResourceExhausted, saying
// how much is needed, when the workspace is too small.
absl::Status PrefillAttention(DeviceQueue& queue, const PagedAttentionParams& params);

}  // namespace baton::kernels::cuda
