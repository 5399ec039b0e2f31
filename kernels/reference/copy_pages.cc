#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/status/status.h"

#include "kernels/core/exec_context.h"
#include "kernels/ops/params.h"
#include "kernels/ops/validate.h"
#include "kernels/reference/reference_kernels.h"

namespace baton::kernels::reference {

absl::Status CopyPages(const ExecContext&, const CopyPagesParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  for (int64_t i = 0; i < params.count; ++i) {
    std::memcpy(params.base + params.target[i] * params.stride_bytes,
                params.base + params.source[i] * params.stride_bytes,
                static_cast<size_t>(params.stride_bytes));
  }
  return absl::OkStatus();
}

}  // namespace baton::kernels::reference
