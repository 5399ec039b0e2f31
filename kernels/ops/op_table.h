// The device line: one table of function pointers per back end, filled with designated
// initialisers.
#pragma once

#include "absl/status/status.h"

#include "kernels/core/exec_context.h"
#include "kernels/ops/params.h"

namespace baton::kernels {

// An op checks its parameters and returns kInvalidArgument for shapes that it can't do; it never
// allocates, never throws and never waits for anything but its own threads. Every entry is set:
// CheckComplete is called at start-up. Ops are stateless; one table serves all threads.
struct OpTable {
  const char* name = "";

  // Bytes of a packed weight, and the packing itself. Load time only.
  size_t (*packed_matrix_bytes)(int64_t out_features, int64_t in_features, DType dtype) = nullptr;
  absl::Status (*pack_matrix)(const ExecContext&, const PackMatrixParams&) = nullptr;
  // Workspace bytes that any op of this table may use with `threads` threads and weights and heads
  // no larger than given.
  size_t (*workspace_bytes)(int threads, int64_t max_in_features, int64_t max_head_dim) = nullptr;

  absl::Status (*embed)(const ExecContext&, const EmbedParams&) = nullptr;
  absl::Status (*rms_norm)(const ExecContext&, const RmsNormParams&) = nullptr;
  absl::Status (*matmul)(const ExecContext&, const MatmulParams&) = nullptr;
  absl::Status (*rope_angles)(const ExecContext&, const RopeAnglesParams&) = nullptr;
  absl::Status (*rope)(const ExecContext&, const RopeParams&) = nullptr;
  absl::Status (*kv_write)(const ExecContext&, const KvWriteParams&) = nullptr;
  absl::Status (*paged_attention)(const ExecContext&, const PagedAttentionParams&) = nullptr;
  absl::Status (*silu_mul)(const ExecContext&, const SiluMulParams&) = nullptr;
  absl::Status (*gather_rows)(const ExecContext&, const GatherRowsParams&) = nullptr;
  absl::Status (*copy_pages)(const ExecContext&, const CopyPagesParams&) = nullptr;
};

// kInternal naming the first empty entry, or OK.
absl::Status CheckComplete(const OpTable& table);

}  // namespace baton::kernels
