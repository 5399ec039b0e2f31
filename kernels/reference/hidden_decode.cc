#include "kernels/core/exec_context.h"
#include "kernels/kv_format/hidden.h"
#include "kernels/ops/activations.h"
#include "kernels/ops/hidden_params.h"
#include "kernels/ops/validate.h"
#include "kernels/reference/reference_kernels.h"

namespace baton::kernels::reference {

absl::Status HiddenDecode(const ExecContext& /*context*/, const HiddenDecodeParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  const auto row_bytes = static_cast<int64_t>(params.layout.row_bytes());
  for (int64_t row = 0; row < params.rows; ++row) {
    DecodeHiddenRow(params.coded + row * row_bytes,
                    params.layout,
                    Floats(params.out) + row * params.out_stride);
  }
  return absl::OkStatus();
}

}  // namespace baton::kernels::reference
