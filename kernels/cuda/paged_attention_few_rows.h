// Attention of some dozens of rows of a sequence over its keys: the observation window of a SwiftKV
// model's upper layers, the last chunk of a prompt, the turn of a conversation.
#pragma once

#include "absl/status/status.h"

#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/ops/params.h"

namespace baton::kernels::cuda {

// Whether a call is one for FewRowsAttention, as far as the host sees: more rows of a sequence than
// the kernel for decode rows takes without reading keys too often, fewer than keep a device busy
// where a block takes all keys of a head; every key up to the row's own seen, no results to merge.
bool HasFewRows(const PagedAttentionParams& params);

// Op `paged_attention` for params that it has checked and that HasFewRows says yes to.
// kUnimplemented, with nothing done, when the workspace has no room for the partial results.
absl::Status FewRowsAttention(const DeviceQueue& queue, const PagedAttentionParams& params);

}  // namespace baton::kernels::cuda
