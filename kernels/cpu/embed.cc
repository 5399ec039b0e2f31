#include <cstring>

#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/ops/activations.h"
#include "kernels/ops/params.h"
#include "kernels/ops/validate.h"

namespace baton::kernels::cpu {

absl::Status Embed(const IsaKernels& isa, const ExecContext& context, const EmbedParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  ForRows(context, params.rows, params.dim, [&](int64_t row) {
    const int64_t offset = params.token_ids[row] * params.dim;
    float* out = Floats(params.out) + row * params.dim;
    if (params.dtype == DType::kF32) {
      const float* source = reinterpret_cast<const float*>(params.table) + offset;
      std::memcpy(out, source, static_cast<size_t>(params.dim) * sizeof(float));
    } else {
      isa.widen(reinterpret_cast<const uint16_t*>(params.table) + offset, params.dim, out);
    }
  });
  return absl::OkStatus();
}

}  // namespace baton::kernels::cpu
