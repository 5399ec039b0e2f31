#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/status/status.h"

#include "kernels/core/exec_context.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/ops/params.h"
#include "kernels/ops/validate.h"

namespace baton::kernels::cpu {

absl::Status CopyPages(const IsaKernels&,
                       const ExecContext& context,
                       const CopyPagesParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  const auto page_elements = params.stride_bytes / static_cast<int64_t>(sizeof(float));
  ForRows(context, params.count, page_elements, [&](int64_t i) {
    std::memcpy(params.base + params.target[i] * params.stride_bytes,
                params.base + params.source[i] * params.stride_bytes,
                static_cast<size_t>(params.stride_bytes));
  });
  return absl::OkStatus();
}

}  // namespace baton::kernels::cpu
