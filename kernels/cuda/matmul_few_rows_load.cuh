// What the loading thread of a block does.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/matmul_few_rows_work.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/ptx_bulk_copy.cuh"

namespace baton::kernels::cuda::few_rows {

// A block's first tile is its own number; then it takes the next that nobody has. Where the device
// is shared (kShared) the next kernel begins late.
template <bool kShared>
class Producer {
 public:
  __device__ Producer(const Call& call, std::byte* bytes)
      : call_(call),
        bytes_(bytes),
        shared_(*reinterpret_cast<Shared*>(bytes)),
        tile_(static_cast<int32_t>(blockIdx.x)),
        x_rows_(call.has_norm() ? 0 : static_cast<int32_t>(call.params.rows)),
        once_(ReadOncePolicy()),
        again_(ReadAgainPolicy()) {}

  __device__ void Run() {
    if (call_.has_norm()) LoadNormWeight();
    int32_t depth = 0;
    for (int32_t i = 0; i < call_.stages && depth < call_.depth(); ++i) {
      LoadWeights(depth);
      depth += kStageDepth;
    }
    WaitForPredecessors();
    if (!kShared) LaunchDependents();
    for (int32_t ahead = 0; ahead < depth; ahead += kStageDepth) LoadRows(ahead);
    while (tile_ < call_.tiles) {
      const auto next =
          static_cast<int32_t>(gridDim.x + atomicAdd(call_.counters + kTileCounter, 1u));
      for (; depth < call_.depth(); depth += kStageDepth) {
        LoadWeights(depth);
        LoadRows(depth);
      }
      tile_ = next;
      depth = 0;
    }
    End();
  }

 private:
  static constexpr int32_t kStageDepth = StageDepth(kShared);

  __device__ void LoadNormWeight() {
    const auto bytes = static_cast<uint32_t>(call_.depth() * sizeof(float));
    BarrierArriveAndExpect(&shared_.norm_weight_full, bytes);
    BulkCopy(bytes_ + call_.norm_weight,
             call_.params.norm.weight,
             bytes,
             &shared_.norm_weight_full,
             again_);
    BulkCopiesStarted(&shared_.norm_weight_full);
  }

  // When the next stage is empty, announces all of its bytes, and asks for the weights.
  __device__ void LoadWeights(int32_t depth) {
    const auto row_bytes = static_cast<uint32_t>(RowBytes(call_, depth, kStageDepth));
    uint64_t* const full = &shared_.full[weights_.place];
    std::byte* const stage = weights_.Stage(call_, bytes_);
    const int32_t first = FirstFeature(call_, tile_);
    const int32_t last = call_.features() - 1;
    const int64_t pitch = int64_t{call_.depth()} * kElementBytes;
    const std::byte* const weights = call_.params.weight.data + int64_t{depth} * kElementBytes;
    BarrierWait(&shared_.empty[weights_.place], weights_.parity ^ 1);
    shared_.tiles[weights_.place] = tile_;
    BarrierArriveAndExpect(full, row_bytes * static_cast<uint32_t>(kTileFeatures + x_rows_));
#pragma unroll
    for (int32_t run = 0; run < 2; ++run) {
#pragma unroll
      for (int32_t i = 0; i < kRunFeatures; ++i) {
        const int32_t feature = min(first + run * call_.distance + i, last);
        BulkCopy(stage + (run * kRunFeatures + i) * StageRowBytes(kStageDepth),
                 weights + feature * pitch,
                 row_bytes,
                 full,
                 once_);
      }
    }
    weights_.Next(call_);
  }

  // The same of x, in a stage whose weights have been asked for.
  __device__ void LoadRows(int32_t depth) {
    std::byte* const target =
        rows_.Stage(call_, bytes_) + kTileFeatures * StageRowBytes(kStageDepth);
    const auto* const source = static_cast<const uint16_t*>(call_.params.x) + depth;
    for (int32_t row = 0; row < x_rows_; ++row) {
      BulkCopy(target + row * StageRowBytes(kStageDepth),
               source + row * call_.params.x_stride,
               static_cast<uint32_t>(RowBytes(call_, depth, kStageDepth)),
               &shared_.full[rows_.place],
               again_);
    }
    BulkCopiesStarted(&shared_.full[rows_.place]);
    rows_.Next(call_);
  }

  // Tells the computing warps that there are no more tiles. The last block to do so puts the
  // counters back.
  __device__ void End() {
    if (kShared) LaunchDependents();
    BarrierWait(&shared_.empty[weights_.place], weights_.parity ^ 1);
    shared_.tiles[weights_.place] = -1;
    BarrierArrive(&shared_.full[weights_.place]);
    __threadfence();
    if (atomicAdd(call_.counters + kRetiredCounter, 1u) + 1 == gridDim.x) {
      call_.counters[kTileCounter] = 0;
      call_.counters[kRetiredCounter] = 0;
    }
  }

  const Call& call_;
  std::byte* bytes_;
  Shared& shared_;
  int32_t tile_;
  int32_t x_rows_;
  uint64_t once_;
  uint64_t again_;
  RingPlace weights_;
  RingPlace rows_;
};

}  // namespace baton::kernels::cuda::few_rows
