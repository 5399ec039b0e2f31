#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

#include "kernels/core/exec_context.h"
#include "kernels/kv_format/diffkv.h"
#include "kernels/ops/diffkv_params.h"
#include "kernels/ops/diffkv_policy.h"
#include "kernels/ops/validate.h"
#include "kernels/reference/reference_kernels.h"

namespace baton::kernels::reference {

absl::Status DiffKvClassify(const ExecContext&, const DiffKvClassifyParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  for (int64_t head = 0; head < params.kv_heads; ++head) {
    int32_t counts[3] = {};  // by class
    const int64_t tokens = params.tokens - params.first_token;
    for (int64_t i = 0; i < tokens; ++i) {
      const DiffKvClass token_class =
          ClassifyPromptToken(params.policy,
                              params.scores[head * params.score_stride + i],
                              params.first_token + i,
                              params.tokens);
      params.classes[head * tokens + i] = token_class;
      ++counts[static_cast<size_t>(token_class)];
    }
    const auto held = [&](int64_t tier) {
      return params.held == nullptr ? 0 : params.held[head * kDiffKvTiers + tier];
    };
    params.token_counts[head * kDiffKvTiers + kDiffKvHigh] =
        held(kDiffKvHigh) + counts[static_cast<size_t>(DiffKvClass::kHigh)];
    params.token_counts[head * kDiffKvTiers + kDiffKvLow] =
        held(kDiffKvLow) + counts[static_cast<size_t>(DiffKvClass::kLow)];
  }
  return absl::OkStatus();
}

}  // namespace baton::kernels::reference
