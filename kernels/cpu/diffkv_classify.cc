#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

#include "kernels/core/exec_context.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/kv_format/diffkv.h"
#include "kernels/ops/diffkv_params.h"
#include "kernels/ops/diffkv_policy.h"
#include "kernels/ops/validate.h"

namespace baton::kernels::cpu {

absl::Status DiffKvClassify(const IsaKernels&,
                            const ExecContext& context,
                            const DiffKvClassifyParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  const int64_t tokens = params.tokens - params.first_token;
  const bool serial = tokens * params.kv_heads < kSerialElements;
  ParallelFor(context, params.kv_heads, serial, [&](int64_t head, int) {
    const float* scores = params.scores + head * params.score_stride;
    DiffKvClass* classes = params.classes + head * tokens;
    int32_t counts[3] = {};  // by class
    for (int64_t i = 0; i < tokens; ++i) {
      classes[i] =
          ClassifyPromptToken(params.policy, scores[i], params.first_token + i, params.tokens);
      ++counts[static_cast<size_t>(classes[i])];
    }
    int32_t* of_head = params.token_counts + head * kDiffKvTiers;
    of_head[kDiffKvHigh] = counts[static_cast<size_t>(DiffKvClass::kHigh)];
    of_head[kDiffKvLow] = counts[static_cast<size_t>(DiffKvClass::kLow)];
    if (params.held != nullptr) {
      of_head[kDiffKvHigh] += params.held[head * kDiffKvTiers + kDiffKvHigh];
      of_head[kDiffKvLow] += params.held[head * kDiffKvTiers + kDiffKvLow];
    }
  });
  return absl::OkStatus();
}

}  // namespace baton::kernels::cpu
