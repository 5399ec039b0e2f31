#include <cstring>

#include "kernels/core/exec_context.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/ops/activations.h"
#include "kernels/ops/params.h"
#include "kernels/ops/validate.h"

namespace baton::kernels::cpu {

absl::Status GatherRows(const IsaKernels&,
                        const ExecContext& context,
                        const GatherRowsParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  ForRows(context, params.rows, params.dim, [&](int64_t row) {
    std::memcpy(Floats(params.out) + row * params.out_stride,
                Floats(params.x) + params.row_index[row] * params.x_stride,
                static_cast<size_t>(params.dim) * sizeof(float));
  });
  return absl::OkStatus();
}

}  // namespace baton::kernels::cpu
