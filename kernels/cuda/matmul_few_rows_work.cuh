// How a product of few rows is cut into tiles of features and stages of their depth, and where a
// block has them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/warp.cuh"
#include "kernels/ops/params.h"

namespace baton::kernels::cuda::few_rows {

inline constexpr int32_t kMostRows = 8;
// Warps that compute, the first of a block; behind them one that loads.
inline constexpr int32_t kConsumerWarps = 8;
inline constexpr int32_t kConsumers = kConsumerWarps * kWarpLanes;
inline constexpr int32_t kThreads = kConsumers + kWarpLanes;
// A tile is two runs of so many features: what a lane of m16n8k16 has sums of.
inline constexpr int32_t kRunFeatures = 8;
inline constexpr int32_t kTileFeatures = 2 * kRunFeatures;
// Elements of the depth that are loaded and waited for at once, each row by a copy of its own. To
// start one takes the loading thread some 25 ns, so that copies of 1 KiB are 40 GB/s at most,
// little more than a multiprocessor's share of an H200's memory: where some read for all, because
// the device is shared (DeviceQueue), copies are twice as long.
constexpr int32_t StageDepth(bool shared) { return shared ? 1024 : 512; }
inline constexpr int32_t kElementBytes = 2;
// A row of a stage in shared memory. Rows begin in different banks: eight lanes read 16 bytes each
// of four places of two rows at once.
inline constexpr int32_t kBankShift = 64;
constexpr int32_t StageRowBytes(int32_t stage_depth) {
  return stage_depth * kElementBytes + kBankShift;
}
inline constexpr int32_t kMostStages = 12;

// Counters of the queue: tiles that are taken, and blocks that take no more.
inline constexpr int32_t kTileCounter = 0;
inline constexpr int32_t kRetiredCounter = 1;

// A call as the kernel gets it.
struct Call {
  MatmulParams params;
  // The second run of a tile is `distance` features behind the first: the next ones, the other
  // halves of what is rotated, or the values that gates are for. Tiles of 2 * distance features.
  int32_t distance = kRunFeatures;
  int32_t group_tiles = 1;
  int32_t tiles = 0;
  // Shared memory, in bytes: the norm's weight, normalised rows, then stages, each with the rows of
  // a tile and, unless they are normalised, those of x.
  int32_t norm_weight = 0;
  int32_t normed = 0;
  int32_t normed_stride = 0;
  int32_t ring = 0;
  int32_t stage_bytes = 0;
  int32_t stages = 0;
  uint32_t* counters = nullptr;

  __device__ bool has_norm() const { return params.norm.weight != nullptr; }
  __device__ int32_t features() const { return static_cast<int32_t>(params.weight.out_features); }
  __device__ int32_t depth() const { return static_cast<int32_t>(params.weight.in_features); }
};

// Feature of a tile's first run.
__device__ inline int32_t FirstFeature(const Call& call, int32_t tile) {
  const int32_t group = tile / call.group_tiles;
  return group * 2 * call.distance + (tile - group * call.group_tiles) * kRunFeatures;
}

// Sums of a tile by the warps that share the depth.
using TileSums = float[kConsumerWarps][kTileFeatures][kMostRows];

// The beginning of a block's shared memory; behind it what a Call has offsets of.
struct Shared {
  TileSums sums[2];  // of this tile and of the one before
  float squares[kMostRows][kConsumerWarps];
  int32_t tiles[kMostStages];  // of the stages; -1: there are no more
  uint64_t norm_weight_full;
  // A stage is full when its bytes have come, empty when every computing warp has let it go.
  uint64_t full[kMostStages];
  uint64_t empty[kMostStages];
};

// Bytes of a row of the stage of so many elements that begins at this one of the depth.
__device__ inline int32_t RowBytes(const Call& call, int32_t depth, int32_t stage_depth) {
  return min(stage_depth, call.depth() - depth) * kElementBytes;
}

// A place in the ring of stages, and the parity of the phase in which it is filled.
struct RingPlace {
  int32_t place = 0;
  uint32_t parity = 0;

  __device__ void Next(const Call& call) {
    if (++place == call.stages) {
      place = 0;
      parity ^= 1;
    }
  }
  __device__ std::byte* Stage(const Call& call, std::byte* shared) const {
    return shared + call.ring + place * call.stage_bytes;
  }
};

}  // namespace baton::kernels::cuda::few_rows
