// The device line: one table of function pointers per back end, filled with designated
// initialisers.
#pragma once

#include "absl/status/status.h"

#include "kernels/core/exec_context.h"
#include "kernels/ops/diffkv_params.h"
#include "kernels/ops/fp8_params.h"
#include "kernels/ops/hidden_params.h"
#include "kernels/ops/params.h"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kernels {

// An op checks its parameters and returns kInvalidArgument for shapes that it can't do; it never
// allocates, never throws and never waits for anything but its own threads. Every entry is set:
// CheckComplete is called at start-up. Ops are stateless; one table serves all threads.
struct OpTable {
  const char* name = "";
  // What activations are made of.
  DType activations = DType::kF32;
  // Rows that a layer is best run for at a time: as many as keep their activations near a host's
  // caches; 0: all that there are.
  int32_t tile_rows = 512;

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
  absl::Status (*top_logits)(const ExecContext&, const TopLogitsParams&) = nullptr;

  // KV format `diffkv` (kernels/ops/diffkv_params.h).
  absl::Status (*attention_probabilities)(const ExecContext&,
                                          const AttentionProbabilitiesParams&) = nullptr;
  absl::Status (*accumulate_scores)(const ExecContext&, const AccumulateScoresParams&) = nullptr;
  absl::Status (*diffkv_classify)(const ExecContext&, const DiffKvClassifyParams&) = nullptr;
  absl::Status (*diffkv_assign_pages)(const ExecContext&, const DiffKvAssignPagesParams&) = nullptr;
  absl::Status (*diffkv_release_pages)(const ExecContext&,
                                       const DiffKvReleasePagesParams&) = nullptr;
  absl::Status (*diffkv_encode)(const ExecContext&, const DiffKvEncodeParams&) = nullptr;
  absl::Status (*diffkv_sweep)(const ExecContext&, const DiffKvSweepParams&) = nullptr;
  absl::Status (*diffkv_take_pages)(const ExecContext&, const DiffKvTakePagesParams&) = nullptr;
  absl::Status (*diffkv_append)(const ExecContext&, const DiffKvAppendParams&) = nullptr;
  absl::Status (*diffkv_attention)(const ExecContext&, const DiffKvAttentionParams&) = nullptr;
  // KV format `shadowkv`. Workspace bytes that any of its ops may use with `threads` threads and
  // problems no larger than given; the workspace must hold workspace_bytes as well.
  size_t (*shadowkv_workspace_bytes)(int threads, const ShadowKvWorkspaceSizes& sizes) = nullptr;
  // What its attention puts into the caches of sequences beside keys.
  ShadowKvCachedValues shadowkv_cached_values = ShadowKvCachedValues::kDequantized;
  absl::Status (*shadowkv_encode)(const ExecContext&, const ShadowKvEncodeParams&) = nullptr;
  // For layers that are there at once, before or after shadowkv_encode of each, and the largest
  // rank that it takes for so many columns; what of it can be done before the prompt is whole, and
  // how many numbers that takes for each layer. All null where a back end gains nothing from it.
  absl::Status (*shadowkv_factor_layers)(const ExecContext&,
                                         const ShadowKvFactorLayersParams&) = nullptr;
  int64_t (*shadowkv_factored_rank)(int64_t columns) = nullptr;
  absl::Status (*shadowkv_add_grams)(const ExecContext&, const ShadowKvAddGramsParams&) = nullptr;
  int64_t (*shadowkv_gram_numbers)(int64_t columns) = nullptr;
  absl::Status (*shadowkv_encode_joint)(const ExecContext&,
                                        const ShadowKvEncodeJointParams&) = nullptr;
  absl::Status (*shadowkv_append)(const ExecContext&, const ShadowKvAppendParams&) = nullptr;
  absl::Status (*shadowkv_append_joint)(const ExecContext&,
                                        const ShadowKvAppendJointParams&) = nullptr;
  absl::Status (*shadowkv_select)(const ExecContext&, const ShadowKvSelectParams&) = nullptr;
  absl::Status (*shadowkv_attention)(const ExecContext&, const ShadowKvAttentionParams&) = nullptr;

  // KV format `fp8` (kernels/ops/fp8_params.h).
  absl::Status (*fp8_encode)(const ExecContext&, const Fp8EncodeParams&) = nullptr;

  // Wire form `hidden` (kernels/ops/hidden_params.h).
  absl::Status (*hidden_encode)(const ExecContext&, const HiddenEncodeParams&) = nullptr;
  absl::Status (*hidden_decode)(const ExecContext&, const HiddenDecodeParams&) = nullptr;
};

// kInternal naming the first empty entry, or OK.
absl::Status CheckComplete(const OpTable& table);

}  // namespace baton::kernels
