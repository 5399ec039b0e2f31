#include "kernels/core/exec_context.h"
#include "kernels/ops/activations.h"
#include "kernels/ops/params.h"
#include "kernels/ops/validate.h"
#include "kernels/reference/reference_kernels.h"

namespace baton::kernels::reference {

absl::Status GatherRows(const ExecContext&, const GatherRowsParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  for (int64_t row = 0; row < params.rows; ++row) {
    for (int64_t i = 0; i < params.dim; ++i) {
      Floats(params.out)[row * params.out_stride + i] =
          Floats(params.x)[params.row_index[row] * params.x_stride + i];
    }
  }
  return absl::OkStatus();
}

}  // namespace baton::kernels::reference
