// What the computing warps of a block do.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/bf16.cuh"
#include "kernels/cuda/matmul_few_rows_finish.cuh"
#include "kernels/cuda/matmul_few_rows_work.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/ptx_bf16.cuh"
#include "kernels/cuda/warp.cuh"

namespace baton::kernels::cuda::few_rows {

inline constexpr uint32_t kConsumerBarrier = 1;
inline constexpr int32_t kVectorBytes = 16;
// Elements of a row that the computing threads take at a time.
inline constexpr int32_t kBlockElements = kConsumers * kVectorWidth;

// One of the computing warps.
template <bool kShared>
class Consumer {
 public:
  __device__ Consumer(const Call& call, std::byte* bytes)
      : call_(call),
        bytes_(bytes),
        shared_(*reinterpret_cast<Shared*>(bytes)),
        warp_(static_cast<int32_t>(threadIdx.x / kWarpLanes)) {}

  __device__ void Run() {
    WaitForPredecessors();
    if (call_.has_norm()) Normalise();
    for (int32_t buffer = 0;; buffer ^= 1) {
      BarrierWait(&shared_.full[ring_.place], ring_.parity);
      const int32_t tile = shared_.tiles[ring_.place];
      if (tile < 0) return;
      RunTile(tile, shared_.sums[buffer]);
    }
  }

 private:
  static constexpr int32_t kStageDepth = StageDepth(kShared);

  // Brings the rows of x to shared memory, normalised and rounded to bf16. A thread reads back only
  // what it has written itself.
  __device__ void Normalise() {
    float squares[kMostRows] = {};
    for (int32_t i = FirstElement(); i < call_.depth(); i += kBlockElements) AddRows(i, squares);
#pragma unroll
    for (int32_t row = 0; row < kMostRows; ++row) {
      if (row < call_.params.rows) shared_.squares[row][warp_] = WarpSum(squares[row]);
    }
    NamedBarrier(kConsumerBarrier, kConsumers);
    BarrierWait(&shared_.norm_weight_full, 0);
    for (int32_t row = 0; row < call_.params.rows; ++row) {
      float sum = 0.0f;
      for (int32_t warp = 0; warp < kConsumerWarps; ++warp) sum += shared_.squares[row][warp];
      const float mean = sum / static_cast<float>(call_.depth());
      Scale(row, 1.0f / sqrtf(mean + call_.params.norm.epsilon));
    }
    NamedBarrier(kConsumerBarrier, kConsumers);
  }

  static __device__ int32_t FirstElement() {
    return static_cast<int32_t>(threadIdx.x) * kVectorWidth;
  }

  // Copies the elements from `i` on of all rows, and adds their squares. All rows are asked for
  // before the first has come.
  __device__ void AddRows(int32_t i, float (&squares)[kMostRows]) const {
    const auto* source = static_cast<const uint16_t*>(call_.params.x) + i;
    uint4 vectors[kMostRows];
#pragma unroll
    for (int32_t row = 0; row < kMostRows; ++row) {
      if (row < call_.params.rows) {
        vectors[row] = *reinterpret_cast<const uint4*>(source + row * call_.params.x_stride);
      }
    }
#pragma unroll
    for (int32_t row = 0; row < kMostRows; ++row) {
      if (row >= call_.params.rows) continue;
      *reinterpret_cast<uint4*>(NormedRow(row) + i) = vectors[row];
      float x[kVectorWidth];
      WidenBf16(vectors[row], x);
#pragma unroll
      for (int32_t j = 0; j < kVectorWidth; ++j) squares[row] = __fmaf_rn(x[j], x[j], squares[row]);
    }
  }

  __device__ void Scale(int32_t row, float inverse) const {
    const auto* weights = reinterpret_cast<const float*>(bytes_ + call_.norm_weight);
    for (int32_t i = FirstElement(); i < call_.depth(); i += kBlockElements) {
      float x[kVectorWidth];
      float weight[kVectorWidth];
      LoadBf16(NormedRow(row) + i, x);
      LoadF32(weights + i, weight);
#pragma unroll
      for (int32_t j = 0; j < kVectorWidth; ++j) x[j] = x[j] * inverse * weight[j];
      StoreBf16(NormedRow(row) + i, x);
    }
  }

  __device__ uint16_t* NormedRow(int32_t row) const {
    return reinterpret_cast<uint16_t*>(bytes_ + call_.normed + row * call_.normed_stride);
  }

  __device__ void RunTile(int32_t tile, TileSums& tile_sums) {
    const bool finishes = threadIdx.x < kFinishers;
    Pair pair;
    Operands operands;
    if (finishes) {
      pair = PairOf(call_, tile);
      operands = LoadOperands(call_, pair);
    }
    float sums[4] = {};
    for (int32_t depth = 0; depth < call_.depth(); depth += kStageDepth) {
      BarrierWait(&shared_.full[ring_.place], ring_.parity);
      MultiplyStage(depth, sums);
      __syncwarp();
      if (threadIdx.x % kWarpLanes == 0) BarrierArrive(&shared_.empty[ring_.place]);
      ring_.Next(call_);
    }
    float(&of_warp)[kTileFeatures][kMostRows] = tile_sums[warp_];
    const int32_t feature = LaneGroup();
    const int32_t row = 2 * LaneInGroup();
    of_warp[feature][row] = sums[0];
    of_warp[feature][row + 1] = sums[1];
    of_warp[feature + 8][row] = sums[2];
    of_warp[feature + 8][row + 1] = sums[3];
    NamedBarrier(kConsumerBarrier, kConsumers);
    if (finishes) FinishPair(call_, pair, operands, tile_sums);
  }

  // Adds the warp's part of a stage: 16 bytes of each row a lane, several times. Zeros behind the
  // depth and for rows that there are not.
  __device__ void MultiplyStage(int32_t depth, float (&sums)[4]) const {
    constexpr int32_t kWarpBytes = 4 * kVectorBytes;
    constexpr int32_t kSteps = kStageDepth * kElementBytes / (kConsumerWarps * kWarpBytes);
    const int32_t group = LaneGroup();
    const std::byte* weights = ring_.Stage(call_, bytes_) + group * StageRowBytes(kStageDepth);
    const std::byte* x = call_.has_norm() ? bytes_ + call_.normed + group * call_.normed_stride +
                                                depth * kElementBytes
                                          : weights + kTileFeatures * StageRowBytes(kStageDepth);
    const int32_t row_bytes = RowBytes(call_, depth, kStageDepth);
#pragma unroll
    for (int32_t step = 0; step < kSteps; ++step) {
      const int32_t at =
          (step * kConsumerWarps + warp_) * kWarpBytes + LaneInGroup() * kVectorBytes;
      const bool inside = at < row_bytes;
      const uint4 low = Vector(weights + at, inside);
      const uint4 high = Vector(weights + 8 * StageRowBytes(kStageDepth) + at, inside);
      const uint4 row = Vector(x + at, inside && group < call_.params.rows);
      MultiplyAddBf16(sums, {low.x, high.x, low.y, high.y}, {row.x, row.y});
      MultiplyAddBf16(sums, {low.z, high.z, low.w, high.w}, {row.z, row.w});
    }
  }

  static __device__ uint4 Vector(const std::byte* address, bool exists) {
    return exists ? *reinterpret_cast<const uint4*>(address) : uint4{};
  }

  const Call& call_;
  std::byte* bytes_;
  Shared& shared_;
  int32_t warp_;
  RingPlace ring_;
};

}  // namespace baton::kernels::cuda::few_rows
