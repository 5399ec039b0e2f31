// Scratch memory of the CPU back end: one slice of the context's workspace per thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "kernels/core/exec_context.h"
#include "kernels/cpu/isa_kernels.h"

namespace baton::kernels::cpu {

// Most (row, query head) lines of one attention tile: the queries and sums of head_dim 128 stay in
// a 2 MiB L2 cache while a KV block is read once for all of them. A multiple of every tile_rows.
inline constexpr int64_t kMaxTileLines = 252;

// Bytes of one thread's slice for attention over heads of head_dim, a multiple of 64.
size_t AttentionScratchBytes(const IsaKernels& isa, int64_t head_dim);
// Bytes of one thread's slice for matmul: one widened depth block of one panel.
size_t MatmulScratchBytes(const IsaKernels& isa);
// Bytes for `threads` threads and any op with heads no larger than max_head_dim.
size_t WorkspaceBytes(const IsaKernels& isa, int threads, int64_t max_head_dim);

// kInvalidArgument when the context's workspace is smaller than slice_bytes for every thread.
absl::Status CheckWorkspace(absl::string_view op, const ExecContext& context, size_t slice_bytes);

// Splits `lines` lines of a tile out of a slice; the arrays' sizes are those of AttentionTile.
// Positions are written through the returned pointers' non-const twins.
struct AttentionScratch {
  AttentionTile tile;
  int32_t* first_key;
  int32_t* last_key;
};
AttentionScratch CarveAttention(const IsaKernels& isa, int64_t head_dim, std::byte* slice);

// Bytes of one thread's slice for attention over quantized pages.
size_t QuantScratchBytes(const IsaKernels& isa, int64_t head_dim);

// A slice for quantized attention: the arrays of QuantHeads, and the queries in the order of each
// tier's key codes.
struct QuantScratch {
  QuantHeads heads;
  float* q[2];  // [head_dim][heads], per tier
  float* q_sums;
  float* factors;  // [heads]
};
QuantScratch CarveQuant(const IsaKernels& isa, int32_t head_dim, std::byte* slice);

}  // namespace baton::kernels::cpu
