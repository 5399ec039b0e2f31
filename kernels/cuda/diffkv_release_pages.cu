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

// Writes the ids that one head holds to `ids`.
__device__ void CopyHead(const DiffKvReleasePagesParams& params, int32_t head, int32_t* ids) {
  for (int32_t tier = 0; tier < kDiffKvTiers; ++tier) {
    const int32_t pages = DevicePagesFor(params.geometry, params.layer.token_counts, head, tier);
    for (int32_t page = static_cast<int32_t>(threadIdx.x); page < pages; page += kThreads) {
      ids[page] = DiffKvPageId(params.layer, head, tier, page);
    }
    ids += pages;
  }
}

// Block x copies the ids of head x. All of them read all counts; the last to end clears them.
__global__ void __launch_bounds__(kThreads)
    ReleasePagesKernel(const __grid_constant__ DiffKvReleasePagesParams params, uint32_t* counter) {
  __shared__ DiffKvPagePlan plan;
  __shared__ bool last;
  const auto head = static_cast<int32_t>(blockIdx.x);
  if (threadIdx.x < 32) {
    const DiffKvPagePlan planned =
        PlanPages(params.geometry.kv_heads, head, params.layer.columns, [&](int32_t other) {
          const int32_t* counts = params.layer.token_counts;
          const int32_t pages = DevicePagesFor(params.geometry, counts, other, kDiffKvHigh) +
                                DevicePagesFor(params.geometry, counts, other, kDiffKvLow);
          return DiffKvHeadNeed{.pages = pages, .taken = pages};
        });
    if (threadIdx.x == 0) plan = planned;
  }
  __syncthreads();
  CopyHead(params, head, params.ids + plan.before);
  __syncthreads();  // the block has read its counts
  if (threadIdx.x == 0) last = ArrivesLast(counter, gridDim.x);
  __syncthreads();
  if (!last) return;
  const int32_t counts = params.geometry.kv_heads * kDiffKvTiers;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < counts; i += kThreads) {
    params.layer.token_counts[i] = 0;
  }
  if (threadIdx.x == 0) *params.count = plan.taken;
}

absl::Status Check(const DiffKvReleasePagesParams& params) {
  ParamChecker check("diffkv_release_pages");
  CheckDiffKvGrid(params.geometry, check);
  CheckDiffKvLayer(params.layer, check);
  check.NotNull("ids", params.ids).NotNull("count", params.count);
  return check.status();
}

}  // namespace

absl::Status DiffKvReleasePages(const ExecContext& context,
                                const DiffKvReleasePagesParams& params) {
  if (absl::Status status = Check(params); !status.ok()) {
    return status;
  }
  const auto blocks = static_cast<uint32_t>(params.geometry.kv_heads);
  ReleasePagesKernel<<<blocks, kThreads, 0, context.queue->stream()>>>(params,
                                                                       context.queue->counters());
  return ToStatus(cudaGetLastError(), "diffkv_release_pages");
}

}  // namespace baton::kernels::cuda
