#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"

#include "kernels/core/exec_context.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/diffkv_checks.h"
#include "kernels/cuda/diffkv_pages.cuh"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/kv_format/diffkv.h"
#include "kernels/ops/diffkv_pages.h"
#include "kernels/ops/diffkv_params.h"
#include "kernels/ops/param_checker.h"

namespace baton::kernels::cuda {
namespace {

constexpr int kThreads = 512;

__device__ DiffKvHeadNeed NeedOf(const DiffKvAssignPagesParams& params, int32_t head) {
  DiffKvHeadNeed need;
  for (int32_t tier = 0; tier < kDiffKvTiers; ++tier) {
    need.pages += DevicePagesFor(params.geometry, params.layer.token_counts, head, tier);
    need.taken -= DevicePagesFor(params.geometry, params.held, head, tier);
  }
  need.taken += need.pages;
  return need;
}

// Writes the table of one head; `ids` are those of its first new page and on.
__device__ void WriteHead(const DiffKvAssignPagesParams& params, int32_t head, const int32_t* ids) {
  for (int32_t tier = 0; tier < kDiffKvTiers; ++tier) {
    const int32_t held = DevicePagesFor(params.geometry, params.held, head, tier);
    const int32_t taken =
        DevicePagesFor(params.geometry, params.layer.token_counts, head, tier) - held;
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < taken; i += kThreads) {
      DiffKvPageId(params.layer, head, tier, held + i) = ids[i];
    }
    ids += taken > 0 ? taken : 0;
  }
}

// Block x writes the table of head x. All of them read what the lease has used; the last to end
// advances it.
__global__ void __launch_bounds__(kThreads)
    AssignPagesKernel(const __grid_constant__ DiffKvAssignPagesParams params, uint32_t* counter) {
  __shared__ DiffKvPagePlan plan;
  __shared__ int32_t used;
  const auto head = static_cast<int32_t>(blockIdx.x);
  if (threadIdx.x < 32) {
    DiffKvPagePlan planned =
        PlanPages(params.geometry.kv_heads, head, params.layer.columns, [&](int32_t other) {
          return NeedOf(params, other);
        });
    if (threadIdx.x == 0) {
      used = params.lease->used;
      planned.fits = planned.fits && planned.taken <= params.lease->count - used;
      plan = planned;
    }
  }
  __syncthreads();
  if (plan.fits) WriteHead(params, head, params.lease->ids + used + plan.before);
  if (threadIdx.x == 0 && ArrivesLast(counter, gridDim.x) && plan.fits) {
    params.lease->used = used + plan.taken;
  }
}

absl::Status Check(const DiffKvAssignPagesParams& params) {
  ParamChecker check("diffkv_assign_pages");
  CheckDiffKvGrid(params.geometry, check);
  CheckDiffKvLayer(params.layer, check);
  check.NotNull("lease", params.lease);
  return check.status();
}

}  // namespace

absl::Status DiffKvAssignPages(const ExecContext& context, const DiffKvAssignPagesParams& params) {
  if (absl::Status status = Check(params); !status.ok()) {
    return status;
  }
  const auto blocks = static_cast<uint32_t>(params.geometry.kv_heads);
  AssignPagesKernel<<<blocks, kThreads, 0, context.queue->stream()>>>(params,
                                                                      context.queue->counters());
  return ToStatus(cudaGetLastError(), "diffkv_assign_pages");
}

}  // namespace baton::kernels::cuda
