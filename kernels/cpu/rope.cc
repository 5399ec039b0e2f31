#include "kernels/core/exec_context.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/ops/activations.h"
#include "kernels/ops/params.h"
#include "kernels/ops/validate.h"

namespace baton::kernels::cpu {

absl::Status Rope(const IsaKernels& isa, const ExecContext& context, const RopeParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  const int64_t half = params.half_dim;
  ForRows(context, params.rows, params.heads * 2 * half, [&](int64_t row) {
    for (int64_t head = 0; head < params.heads; ++head) {
      isa.rope(Floats(params.x) + row * params.x_stride + head * 2 * half,
               params.cosines + row * half,
               params.sines + row * half,
               half);
    }
  });
  return absl::OkStatus();
}

}  // namespace baton::kernels::cpu
