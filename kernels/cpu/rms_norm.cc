#include "kernels/core/exec_context.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/ops/activations.h"
#include "kernels/ops/params.h"
#include "kernels/ops/validate.h"

namespace baton::kernels::cpu {

absl::Status RmsNorm(const IsaKernels& isa,
                     const ExecContext& context,
                     const RmsNormParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  ForRows(context, params.rows, params.groups * params.dim, [&](int64_t row) {
    for (int64_t group = 0; group < params.groups; ++group) {
      const int64_t offset = group * params.dim;
      isa.rms_norm(Floats(params.x) + row * params.x_stride + offset,
                   params.weight,
                   params.epsilon,
                   params.dim,
                   Floats(params.out) + row * params.out_stride + offset);
    }
  });
  return absl::OkStatus();
}

}  // namespace baton::kernels::cpu
