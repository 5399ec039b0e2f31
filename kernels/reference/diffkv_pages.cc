#include "kernels/ops/diffkv_pages.h"

#include "absl/status/status.h"

#include "kernels/core/exec_context.h"
#include "kernels/ops/diffkv_params.h"
#include "kernels/reference/reference_kernels.h"

namespace baton::kernels::reference {

absl::Status DiffKvAssignPages(const ExecContext&, const DiffKvAssignPagesParams& params) {
  return AssignDiffKvPages(params);
}

absl::Status DiffKvReleasePages(const ExecContext&, const DiffKvReleasePagesParams& params) {
  return ReleaseDiffKvPages(params);
}

absl::Status DiffKvTakePages(const ExecContext&, const DiffKvTakePagesParams& params) {
  return TakeDiffKvPages(params);
}

}  // namespace baton::kernels::reference
