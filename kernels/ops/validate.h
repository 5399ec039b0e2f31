// Parameter checks shared by every back end.
#pragma once

#include "absl/status/status.h"

#include "kernels/ops/diffkv_params.h"
#include "kernels/ops/fp8_params.h"
#include "kernels/ops/hidden_params.h"
#include "kernels/ops/params.h"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kernels {

// kInvalidArgument naming the op, the field and its value when a size is negative, a pointer that
// would be read is null, a stride is shorter than its row, a dtype has no code, or an id is outside
// its range; else OK. Zero rows are fine and need no pointers. Reads only the parameters and the
// arrays of ids and positions. Thread-safe.
absl::Status Validate(const PackMatrixParams& params);
absl::Status Validate(const EmbedParams& params);
absl::Status Validate(const RmsNormParams& params);
absl::Status Validate(const MatmulParams& params);
absl::Status Validate(const RopeAnglesParams& params);
absl::Status Validate(const RopeParams& params);
absl::Status Validate(const KvWriteParams& params);
absl::Status Validate(const PagedAttentionParams& params);
absl::Status Validate(const SiluMulParams& params);
absl::Status Validate(const TopLogitsParams& params);
absl::Status Validate(const GatherRowsParams& params);
absl::Status Validate(const CopyPagesParams& params);
absl::Status Validate(const AttentionProbabilitiesParams& params);
absl::Status Validate(const AccumulateScoresParams& params);
absl::Status Validate(const DiffKvClassifyParams& params);
absl::Status Validate(const DiffKvAssignPagesParams& params);
absl::Status Validate(const DiffKvReleasePagesParams& params);
absl::Status Validate(const DiffKvEncodeParams& params);
absl::Status Validate(const DiffKvSweepParams& params);
absl::Status Validate(const DiffKvTakePagesParams& params);
absl::Status Validate(const DiffKvAppendParams& params);
absl::Status Validate(const DiffKvAttentionParams& params);
absl::Status Validate(const ShadowKvEncodeParams& params);
absl::Status Validate(const ShadowKvAddGramsParams& params);
absl::Status Validate(const ShadowKvFactorLayersParams& params);
absl::Status Validate(const ShadowKvEncodeJointParams& params);
absl::Status Validate(const ShadowKvAppendParams& params);
absl::Status Validate(const ShadowKvAppendJointParams& params);
absl::Status Validate(const ShadowKvSelectParams& params);
absl::Status Validate(const ShadowKvAttentionParams& params);
absl::Status Validate(const Fp8EncodeParams& params);
absl::Status Validate(const HiddenEncodeParams& params);
absl::Status Validate(const HiddenDecodeParams& params);

}  // namespace baton::kernels
