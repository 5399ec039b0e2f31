// Up to eight rows are bound by the weights: one row of Llama-3.1-8B's output projection reads 32
// MiB, 7.9 us of an H200's memory, in which starting to read and the last block's end show. So what
// goes with a product is done in it, and one block on each multiprocessor goes over its tiles
// (matmul_few_rows_work.cuh) without a pause in its reading. The kernel is launched early: where a
// block of the kernel in front has ended, one asks for its first weights, on which no result of
// that kernel has a bearing. Blocks fill a multiprocessor's shared memory, so that none begins
// beside another and leaves one idle; as they begin at different times, tiles are dealt as they are
// asked for. While other queues have work (DeviceQueue::shared), a third of the multiprocessors is
// left to it: the others read nearly as fast, and the next kernel's blocks, which would take what
// is left, begin only when a block has nothing more to ask for.
//
// One thread loads (matmul_few_rows_load.cuh): bulk copies of 1 KiB of a row each, or of 2, into a
// ring of stages in shared memory. Eight warps compute (matmul_few_rows_compute.cuh); they share
// the depth of every stage. Weights are the 16-row operand of the matrix instruction and rows of x
// its 8 columns. Which element of the depth is which k of a product is free, so a lane takes 16
// contiguous bytes of weights, and of x alike. At the end of a tile the sums of the eight warps are
// put together in their order, whatever the number of rows.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

#include "kernels/core/round_up.h"
#include "kernels/cuda/allow_shared.h"
#include "kernels/cuda/bf16.cuh"
#include "kernels/cuda/matmul_few_rows.h"
#include "kernels/cuda/matmul_few_rows_compute.cuh"
#include "kernels/cuda/matmul_few_rows_load.cuh"
#include "kernels/cuda/matmul_few_rows_work.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/cuda/runtime/early_launch.h"
#include "kernels/ops/params.h"

namespace baton::kernels::cuda {
namespace {

using few_rows::Call;
using few_rows::kElementBytes;
using few_rows::kTileFeatures;
using few_rows::Shared;

// Elements of the ring's stages: what is on its way must cover the memory's latency.
constexpr int32_t kLeastDepth = 4 * few_rows::StageDepth(/*shared=*/false);
constexpr int32_t kAlignment = 128;
// Of kShare multiprocessors one is left to other queues.
constexpr int32_t kShare = 3;
// What 32 bits count in bytes and tiles.
constexpr int64_t kMostFeatures = int64_t{1} << 28;
constexpr int64_t kMostDepth = int64_t{1} << 28;

__device__ void InitBarriers(Shared& shared) {
  if (threadIdx.x == 0) {
    BarrierInit(&shared.norm_weight_full, 1);
    for (int32_t i = 0; i < few_rows::kMostStages; ++i) {
      BarrierInit(&shared.full[i], 1);
      BarrierInit(&shared.empty[i], few_rows::kConsumerWarps);
    }
    BarrierInitFence();
  }
  __syncthreads();
}

template <bool kShared>
__global__ void __launch_bounds__(few_rows::kThreads)
    FewRowsKernel(const __grid_constant__ Call call) {
  extern __shared__ __align__(kAlignment) std::byte bytes[];
  InitBarriers(*reinterpret_cast<Shared*>(bytes));
  if (threadIdx.x >= few_rows::kConsumers) {
    if (ElectOne()) few_rows::Producer<kShared>(call, bytes).Run();
    WaitForPredecessors();
  } else {
    few_rows::Consumer<kShared>(call, bytes).Run();
  }
}

constexpr int64_t Aligned(int64_t bytes) { return RoundUp(bytes, kAlignment); }

// Cuts the features into tiles.
void CutFeatures(Call& call) {
  const MatmulParams& params = call.params;
  const auto features = static_cast<int32_t>(params.weight.out_features);
  if (params.rope.cosines != nullptr) call.distance = static_cast<int32_t>(params.rope.half_dim);
  if (params.gate_up != nullptr) call.distance = features / 2;
  const int32_t group = 2 * call.distance;
  call.group_tiles = (call.distance + few_rows::kRunFeatures - 1) / few_rows::kRunFeatures;
  call.tiles = (features + group - 1) / group * call.group_tiles;
}

// Places what a block has in shared memory, with as many stages as there is room for. Returns its
// bytes; where these are more than a block of the device may have there is nothing placed.
int64_t PlaceShared(const Device& device, bool shared, Call& call) {
  const auto most = static_cast<int64_t>(device.block_shared_bytes);
  const int64_t rows = call.params.rows;
  const int64_t depth = call.params.weight.in_features;
  const bool has_norm = call.params.norm.weight != nullptr;
  const int64_t norm_weight = Aligned(sizeof(Shared));
  const int64_t normed = norm_weight + (has_norm ? Aligned(depth * int64_t{sizeof(float)}) : 0);
  const int64_t normed_stride = Aligned(depth * kElementBytes) + few_rows::kBankShift;
  const int64_t ring = normed + (has_norm ? Aligned(rows * normed_stride) : 0);
  const int32_t stage_depth = few_rows::StageDepth(shared);
  const int64_t stage =
      (kTileFeatures + (has_norm ? 0 : rows)) * few_rows::StageRowBytes(stage_depth);
  const int64_t stages =
      std::clamp<int64_t>((most - ring) / stage, kLeastDepth / stage_depth, few_rows::kMostStages);
  const int64_t bytes = ring + stages * stage;
  if (bytes <= most) {
    call.norm_weight = static_cast<int32_t>(norm_weight);
    call.normed = static_cast<int32_t>(normed);
    call.normed_stride = static_cast<int32_t>(normed_stride);
    call.ring = static_cast<int32_t>(ring);
    call.stage_bytes = static_cast<int32_t>(stage);
    call.stages = static_cast<int32_t>(stages);
  }
  return bytes;
}

// Whether everything that is copied or rotated by eight elements lies so.
bool IsAligned(const MatmulParams& params) {
  const bool rotated = params.rope.cosines != nullptr;
  return FitsVectors(
      {params.x, params.weight.data, params.norm.weight},
      {params.x_stride, params.weight.in_features, rotated ? params.rope.half_dim : 0});
}

}  // namespace

bool HasFewRows(const DeviceQueue& queue, const MatmulParams& params) {
  Call call = {.params = params};
  return params.rows <= few_rows::kMostRows && params.weight.out_features <= kMostFeatures &&
         params.weight.in_features <= kMostDepth && IsAligned(params) &&
         PlaceShared(queue.device(), /*shared=*/false, call) <=
             static_cast<int64_t>(queue.device().block_shared_bytes);
}

absl::Status MatmulFewRows(const DeviceQueue& queue, const MatmulParams& params) {
  Call call = {.params = params};
  call.counters = queue.counters();
  CutFeatures(call);
  const bool shared = queue.shared();
  const int64_t bytes = PlaceShared(queue.device(), shared, call);
  const int32_t multiprocessors = queue.multiprocessors();
  const int32_t taken = multiprocessors - (shared ? multiprocessors / kShare : 0);
  const auto blocks = static_cast<uint32_t>(std::min(call.tiles, taken));
  const auto kernel = shared ? FewRowsKernel<true> : FewRowsKernel<false>;
  cudaError_t error = AllowShared(kernel, static_cast<size_t>(bytes));
  if (error == cudaSuccess) {
    error =
        LaunchEarly(queue, kernel, blocks, few_rows::kThreads, static_cast<size_t>(bytes), call);
  }
  return ToStatus(error, "matmul");
}

}  // namespace baton::kernels::cuda
