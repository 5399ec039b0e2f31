#include "kernels/core/exec_context.h"
#include "kernels/kv_format/hidden.h"
#include "kernels/ops/activations.h"
#include "kernels/ops/hidden_params.h"
#include "kernels/ops/validate.h"
#include "kernels/reference/reference_kernels.h"

namespace baton::kernels::reference {

absl::Status HiddenEncode(const ExecContext& /*context*/, const HiddenEncodeParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  const auto row_bytes = static_cast<int64_t>(params.layout.row_bytes());
  for (int64_t row = 0; row < params.rows; ++row) {
    EncodeHiddenRow(
        Floats(params.x) + row * params.x_stride, params.layout, params.coded + row * row_bytes);
  }
  return absl::OkStatus();
}

}  // namespace baton::kernels::reference
