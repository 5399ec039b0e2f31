#include "kernels/ops/diffkv_pages.h"

#include "absl/status/status.h"

#include "kernels/core/exec_context.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/isa_kernels.h"
#include "kernels/ops/diffkv_params.h"

namespace baton::kernels::cpu {

absl::Status DiffKvAssignPages(const IsaKernels&,
                               const ExecContext&,
                               const DiffKvAssignPagesParams& params) {
  return AssignDiffKvPages(params);
}

absl::Status DiffKvReleasePages(const IsaKernels&,
                                const ExecContext&,
                                const DiffKvReleasePagesParams& params) {
  return ReleaseDiffKvPages(params);
}

absl::Status DiffKvTakePages(const IsaKernels&,
                             const ExecContext&,
                             const DiffKvTakePagesParams& params) {
  return TakeDiffKvPages(params);
}

}  // namespace baton::kernels::cpu
