#include "kernels/core/exec_context.h"
#include "kernels/ops/activations.h"
#include "kernels/ops/params.h"
#include "kernels/ops/validate.h"
#include "kernels/reference/reference_kernels.h"

namespace baton::kernels::reference {

absl::Status Embed(const ExecContext&, const EmbedParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  for (int64_t row = 0; row < params.rows; ++row) {
    for (int64_t i = 0; i < params.dim; ++i) {
      const int64_t element = params.token_ids[row] * params.dim + i;
      Floats(params.out)[row * params.dim + i] =
          LoadElement(params.table, params.dtype, static_cast<size_t>(element));
    }
  }
  return absl::OkStatus();
}

}  // namespace baton::kernels::reference
