// Top logits on the host.
#pragma once

#include <span>

#include "absl/status/status.h"

#include "kernels/core/exec_context.h"
#include "kernels/ops/params.h"

namespace baton::kernels {

// Natural logarithm of the sum of exp(logit); the highest finite logit is factored out. A NaN
// counts as -infinity; +infinity if a logit is, -infinity if all are.
double LogSumExp(std::span<const float> logits);

// OpTable::top_logits of the back ends on the host, and what a device's is measured by; log_sums
// are added up in fp64. The host's sampler reads whole rows instead.
absl::Status TopLogitsOnHost(const ExecContext& context, const TopLogitsParams& params);

}  // namespace baton::kernels
