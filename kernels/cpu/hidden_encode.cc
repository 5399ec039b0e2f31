#include "kernels/core/exec_context.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/kv_format/hidden.h"
#include "kernels/ops/activations.h"
#include "kernels/ops/hidden_params.h"
#include "kernels/ops/validate.h"

namespace baton::kernels::cpu {

absl::Status HiddenEncode(const IsaKernels& /*isa*/,
                          const ExecContext& context,
                          const HiddenEncodeParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  const auto row_bytes = static_cast<int64_t>(params.layout.row_bytes());
  ForRows(context, params.rows, params.layout.width, [&](int64_t row) {
    EncodeHiddenRow(
        Floats(params.x) + row * params.x_stride, params.layout, params.coded + row * row_bytes);
  });
  return absl::OkStatus();
}

}  // namespace baton::kernels::cpu
