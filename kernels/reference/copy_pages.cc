#include <cstring>

#include "kernels/ops/validate.h"
#include "kernels/reference/reference_kernels.h"

namespace baton::kernels::reference {

absl::Status CopyPages(const ExecContext&, const CopyPagesParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  const size_t stride = params.pages.layout.stride_bytes();
  for (int64_t i = 0; i < params.count; ++i) {
    std::memmove(params.pages.base + static_cast<size_t>(params.target[i]) * stride,
                 params.pages.base + static_cast<size_t>(params.source[i]) * stride,
                 params.pages.layout.page_bytes());
  }
  return absl::OkStatus();
}

}  // namespace baton::kernels::reference
