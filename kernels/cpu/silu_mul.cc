#include "kernels/core/exec_context.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/ops/activations.h"
#include "kernels/ops/params.h"
#include "kernels/ops/validate.h"

namespace baton::kernels::cpu {

absl::Status SiluMul(const IsaKernels& isa,
                     const ExecContext& context,
                     const SiluMulParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  ForRows(context, params.rows, 4 * params.dim, [&](int64_t row) {
    const float* gate = Floats(params.gate_up) + row * params.gate_up_stride;
    isa.silu_mul(gate, gate + params.dim, params.dim, Floats(params.out) + row * params.out_stride);
  });
  return absl::OkStatus();
}

}  // namespace baton::kernels::cpu
