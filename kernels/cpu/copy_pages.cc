#include <cstring>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/ops/validate.h"

namespace baton::kernels::cpu {

absl::Status CopyPages(const IsaKernels&,
                       const ExecContext& context,
                       const CopyPagesParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  const size_t stride = params.pages.layout.stride_bytes();
  const size_t bytes = params.pages.layout.page_bytes();
  const auto page_elements = static_cast<int64_t>(bytes / sizeof(float));
  ForRows(context, params.count, page_elements, [&](int64_t i) {
    std::memmove(params.pages.base + static_cast<size_t>(params.target[i]) * stride,
                 params.pages.base + static_cast<size_t>(params.source[i]) * stride,
                 bytes);
  });
  return absl::OkStatus();
}

}  // namespace baton::kernels::cpu
