// Reconstruction of selected keys chunk by chunk: for the shapes of ShadowKvChunkKeyRank faster
// than the one for all shapes (shadowkv_reconstruct.cuh).
//
// At rank 160 a key of 128 dimensions costs 41 kflop and 320 bytes of coefficients. A chunk's
// coefficients lie behind each other, so one bulk copy brings them. A block has one KV head and
// keeps the head's columns of the basis in registers: 32 dimensions for each of four warps, 16 of
// each half of the key, so that the two elements which RoPE rotates together are in one lane. Each
// warp brings two chunks of every tile of eight through a ring in shared memory, the first tile
// while the basis, which takes the places of the others, comes to registers.
//
// Row r of a matrix of eight rows is a token of the tile's chunk r. Chunks lie 16 bytes further
// apart than they are long, a length that is a multiple of 256 bytes: eight rows at the same place
// of eight chunks are in different banks. A lane's tokens are all of one chunk, so it reads the
// angles of the chunk's first token once and turns them by those of the places in the chunk.
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "kernels/cuda/allow_shared.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/ptx_bf16.cuh"
#include "kernels/cuda/ptx_bulk_copy.cuh"
#include "kernels/cuda/ptx_tile.cuh"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/cuda/runtime/early_launch.h"
#include "kernels/cuda/shadowkv_angles.cuh"
#include "kernels/cuda/shadowkv_chunk_keys.h"
#include "kernels/cuda/shadowkv_parts.cuh"
#include "kernels/cuda/shadowkv_plan.cuh"
#include "kernels/cuda/warp.cuh"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kernels::cuda::shadowkv {
namespace {

constexpr int32_t kHeadDim = kShadowKvChunkKeyDim;
constexpr int32_t kHalf = kHeadDim / 2;
constexpr int32_t kTokens = kShadowKvChunkKeyTokens;  // of a chunk
constexpr int32_t kChunks = 8;                        // of a tile
constexpr int32_t kWarps = 4;
constexpr int32_t kThreads = kWarps * kWarpLanes;
constexpr int32_t kBlocks = 3;                     // of a multiprocessor
constexpr int32_t kRing = 3;                       // tiles
constexpr int32_t kPadding = 16;                   // bytes between chunks of a tile
constexpr int32_t kBasisParts = kHeadDim / 8;      // of 16 bytes, of a row of the basis
constexpr int32_t kWarpChunks = kChunks / kWarps;  // of a tile, that a warp brings

template <int kRank>
struct alignas(128) ChunkKeyShared {
  static constexpr int32_t kRowBytes = kRank * 2;
  static constexpr int32_t kChunkBytes = kTokens * kRowBytes;
  static constexpr int32_t kChunkStride = kChunkBytes + kPadding;

  std::byte tiles[kRing][kChunks * kChunkStride];
  alignas(16) float cosines[kTokens][kHalf];  // of places in a chunk
  float sines[kTokens][kHalf];
  float bias[kHeadDim];         // of the head; zeros without
  int2 chunks[kRing][kChunks];  // id and slot; slot -1: there is no such chunk
  uint64_t full[kRing];
  uint64_t empty[kRing];
  HeadPlan plan;

  // The basis on its way to registers, behind the first tile. The parts of a row lie in the order
  // of their number xor the row's, so that eight rows at the same part are read without conflicts.
  __device__ std::byte* BasisPart(int32_t row, int32_t part) {
    static_assert(kRank * kBasisParts * 16 <= (kRing - 1) * sizeof(tiles[0]));
    return tiles[1] + (row * kBasisParts + (part ^ (row % 8))) * 16;
  }
};

// The tiles of a block, in turns: every gridDim.x-th of those that the head's misses fill.
struct BlockTiles {
  int32_t misses;

  __device__ int32_t Tile(int32_t turn) const {
    return static_cast<int32_t>(blockIdx.x) + turn * static_cast<int32_t>(gridDim.x);
  }
  // Chunks of the turn's tile; none: there is no such turn.
  __device__ int32_t Chunks(int32_t turn) const {
    return max(0, min(kChunks, misses - Tile(turn) * kChunks));
  }
};

__device__ inline int32_t Lane() { return static_cast<int32_t>(threadIdx.x % kWarpLanes); }
__device__ inline int32_t Warp() { return static_cast<int32_t>(threadIdx.x / kWarpLanes); }

// --- Bringing ------------------------------------------------------------------------------------

// Starts the copies of the head's columns of the basis and of the angles of places in a chunk, each
// of 16 bytes: a bulk copy takes longer to start than to bring a row. All threads.
template <int kRank>
__device__ void BringConstants(const ShadowKvRope& rope, ChunkKeyShared<kRank>& shared) {
  constexpr int32_t kRows = kThreads / kBasisParts;  // at once; rows of a thread have one order
  static_assert(kRows == 8 && kRank % kRows == 0 && kTokens * kHalf == 4 * kThreads);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t part = thread % kBasisParts;
  const int32_t first = thread / kBasisParts;
  const int64_t row_bytes = shared.plan.basis_bytes;
  const std::byte* source = shared.plan.basis + first * row_bytes + part * 16;
  std::byte* target = shared.BasisPart(first, part);
#pragma unroll
  for (int32_t i = 0; i < kRank / kRows; ++i) {
    CopyAsync16(target + i * kRows * kBasisParts * 16, source);
    source += kRows * row_bytes;
  }
  CopyAsync16(&shared.cosines[0][0] + 4 * thread, rope.cosines + 4 * thread);
  CopyAsync16(&shared.sines[0][0] + 4 * thread, rope.sines + 4 * thread);
  CommitCopies();
}

// The lane's chunk of a turn's tile, one of the first kWarpChunks lanes'; slot -1: none.
__device__ inline int2 OwnChunk(const int2* misses, const BlockTiles& tiles, int32_t turn) {
  const int32_t place = Warp() * kWarpChunks + Lane();
  const bool exists = Lane() < kWarpChunks && place < tiles.Chunks(turn);
  return exists ? misses[tiles.Tile(turn) * kChunks + place] : make_int2(0, -1);
}

// Starts the copies of the warp's chunks of a turn's tile, if there is such a turn, once all warps
// have left the tile whose place it takes. `chunk` is OwnChunk of it. All warps.
template <int kRank>
__device__ void BringTile(int2 chunk,
                          const BlockTiles& tiles,
                          int32_t turn,
                          ChunkKeyShared<kRank>& shared) {
  constexpr uint32_t kBytes = ChunkKeyShared<kRank>::kChunkBytes;
  const int32_t count = tiles.Chunks(turn);
  if (count == 0) return;
  const int32_t stage = turn % kRing;
  if (turn >= kRing) BarrierWait(&shared.empty[stage], (turn / kRing - 1) % 2);
  const int32_t place = Warp() * kWarpChunks + Lane();
  if (Lane() < kWarpChunks) shared.chunks[stage][place] = chunk;
  __syncwarp();
  if (Lane() == 0) {
    const int32_t own = max(0, min(kWarpChunks, count - place));
    BarrierArriveAndExpect(&shared.full[stage], kBytes * own);
  }
  __syncwarp();
  if (chunk.y >= 0) {
    BulkCopy(shared.tiles[stage] + place * shared.kChunkStride,
             shared.plan.coefficients.Chunk(shared.plan.chunks, chunk.x),
             kBytes,
             &shared.full[stage],
             ReadAgainPolicy());
  }
  WarpBulkCopiesStarted(&shared.full[stage]);
}

// --- Multiplying ---------------------------------------------------------------------------------

// The lane's first dimension of tile `n` of eight, of two in each half of the key.
__device__ inline int32_t LaneDim(int n) { return Warp() * 16 + 8 * n + Lane() % 4 * 2; }

// The warp's columns of the basis as second operands: for 16 rows each, of both halves, two tiles
// of eight dimensions.
template <int kRank>
struct BasisColumns {
  static constexpr int kSteps = kRank / 16;

  uint32_t parts[kSteps][2][4];

  __device__ void Load(ChunkKeyShared<kRank>& shared) {
    const int32_t row = Lane() % 16;
    const int32_t part = Warp() * 2 + Lane() / 16;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        LoadTransposed(shared.BasisPart(16 * s + row, half * (kHalf / 8) + part), parts[s][half]);
      }
    }
  }
};

// Keys before RoPE of four tokens of every chunk of a tile: token 2 m + r of them in elements 2 r
// and 2 r + 1, of both halves, two tiles of eight dimensions.
struct TokenSums {
  float parts[2][2][2][4];

  // Begins with what the layer adds.
  template <int kRank>
  __device__ explicit TokenSums(const ChunkKeyShared<kRank>& shared) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const float* bias = &shared.bias[half * kHalf + LaneDim(n)];
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          parts[m][half][n][0] = parts[m][half][n][2] = bias[0];
          parts[m][half][n][1] = parts[m][half][n][3] = bias[1];
        }
      }
    }
  }

  template <int kRank>
  __device__ void Multiply(const std::byte* tile, int32_t token, const BasisColumns<kRank>& basis) {
    using Shared = ChunkKeyShared<kRank>;
    const std::byte* row = tile + Lane() % 8 * Shared::kChunkStride +
                           (token + Lane() / 8 % 2) * Shared::kRowBytes + Lane() / 16 * 16;
#pragma unroll
    for (int s = 0; s < basis.kSteps; ++s) {
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        uint32_t a[4];
        LoadMatrices(row + 2 * m * Shared::kRowBytes + 32 * s, a);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint32_t(&b)[4] = basis.parts[s][half];
          MultiplyAddBf16(parts[m][half][0], a, {b[0], b[1]});
          MultiplyAddBf16(parts[m][half][1], a, {b[2], b[3]});
        }
      }
    }
  }
};

// Four neighbouring dimensions for each lane of a pair: of the first tile for the even one, of the
// second for the odd one.
__device__ inline uint2 Exchange(uint32_t first, uint32_t second) {
  const bool odd = Lane() % 2 != 0;
  const uint32_t other = __shfl_xor_sync(kAllLanes, odd ? first : second, 1);
  return odd ? make_uint2(other, second) : make_uint2(first, other);
}

// Where the lane's dimensions of the first half are in a key, after Exchange.
__device__ inline int32_t StoreDim() { return Warp() * 16 + Lane() % 2 * 8 + Lane() % 4 / 2 * 4; }

// Rotates and rounds four tokens of the lane's chunk, from `token` on, and writes them from
// `target` on, which is where the lane's dimensions of the first of them are; null: there is no
// such chunk.
template <int kRank>
__device__ inline void StoreTokens(const ChunkKeyShared<kRank>& shared,
                                   const TokenSums& sums,
                                   const KeyAngles (&chunk_angles)[2],
                                   int32_t token,
                                   uint16_t* target) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    uint32_t low[2];
    uint32_t high[2];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      KeyAngles angles = chunk_angles[n];
      angles.Add(
          KeyAngles(&shared.cosines[token + i][LaneDim(n)], &shared.sines[token + i][LaneDim(n)]));
      const float* x = &sums.parts[i / 2][0][n][i % 2 * 2];
      const float* y = &sums.parts[i / 2][1][n][i % 2 * 2];
      RotatePair({x[0], x[1]}, {y[0], y[1]}, angles, low[n], high[n]);
    }
    const uint2 low_dims = Exchange(low[0], low[1]);
    const uint2 high_dims = Exchange(high[0], high[1]);
    if (target == nullptr) continue;
    __stcg(reinterpret_cast<uint2*>(target + i * kHeadDim), low_dims);
    __stcg(reinterpret_cast<uint2*>(target + i * kHeadDim + kHalf), high_dims);
  }
}

// The warp's dimensions of the keys of a tile.
template <int kRank>
__device__ void MakeKeys(const ShadowKvRope& rope,
                         int32_t stage,
                         const BasisColumns<kRank>& basis,
                         ChunkKeyShared<kRank>& shared) {
  const int2 chunk = shared.chunks[stage][Lane() / 4];
  const int64_t angle = int64_t{chunk.x} * kTokens * kHalf;
  const KeyAngles angles[2] = {
      {rope.cosines + angle + LaneDim(0), rope.sines + angle + LaneDim(0)},
      {rope.cosines + angle + LaneDim(1), rope.sines + angle + LaneDim(1)}};
  uint16_t* target = chunk.y < 0 ? nullptr
                                 : reinterpret_cast<uint16_t*>(shared.plan.keys) +
                                       int64_t{chunk.y} * kTokens * kHeadDim + StoreDim();
  for (int32_t token = 0; token < kTokens; token += 4) {
    TokenSums sums(shared);
    sums.Multiply(shared.tiles[stage], token, basis);
    if (token + 4 == kTokens) {
      __syncwarp();
      if (Lane() == 0) BarrierArrive(&shared.empty[stage]);
    }
    StoreTokens(shared, sums, angles, token, target);
    if (target != nullptr) target += 4 * kHeadDim;
  }
}

// --- The kernel ----------------------------------------------------------------------------------

// The block's keys. The grid's y is the KV head, its z the sequence, from the last one on:
// attention begins with the first, whose keys are then still in the second-level cache.
template <int kRank>
__device__ __forceinline__ void MakeBlockKeys(const AttendCall& call,
                                              ChunkKeyShared<kRank>& shared) {
  const int64_t pair = (gridDim.z - 1 - blockIdx.z) * int64_t{gridDim.y} + blockIdx.y;
  const HeadPlan& plan = call.scratch.plans[pair];
  const BlockTiles tiles = {.misses = plan.misses};
  if (tiles.Chunks(0) == 0) return;
  if (threadIdx.x == 0) {
    shared.plan = plan;
    for (int32_t stage = 0; stage < kRing; ++stage) {
      BarrierInit(&shared.full[stage], kWarps);
      BarrierInit(&shared.empty[stage], kWarps);
    }
    BarrierInitFence();
  }
  __syncthreads();
  const int2* misses = call.scratch.misses + pair * call.scratch.slot_stride;
  BringTile(OwnChunk(misses, tiles, 0), tiles, 0, shared);
  BringConstants(call.params.rope, shared);
  const float* bias = call.params.key_bias;
  const int64_t column = int64_t{blockIdx.y} * kHeadDim + threadIdx.x;
  static_assert(kThreads == kHeadDim);
  shared.bias[threadIdx.x] = bias == nullptr ? 0.0f : bias[column];
  WaitForCopies<0>();
  __syncthreads();
  BasisColumns<kRank> basis;
  basis.Load(shared);
  __syncthreads();  // the basis is in registers: its memory becomes the ring's
  // Tiles are brought a turn ahead, so a warp may be a tile in front of another.
  int2 next = OwnChunk(misses, tiles, 1);
  for (int32_t turn = 0; tiles.Chunks(turn) > 0; ++turn) {
    BringTile(next, tiles, turn + 1, shared);
    next = OwnChunk(misses, tiles, turn + 2);
    BarrierWait(&shared.full[turn % kRing], turn / kRing % 2);
    MakeKeys(call.params.rope, turn % kRing, basis, shared);
  }
}

// In front is the kernel that made the plans, or one that waited for it before it let this one
// begin, and that brings values beside it (shadowkv_value_cache.h). Attention behind waits for the
// end of this kernel alone, so one block ends no sooner than those copies.
template <int kRank>
__global__ void __launch_bounds__(kThreads, kBlocks)
    ChunkKeyKernel(const __grid_constant__ AttendCall call) {
  extern __shared__ __align__(128) std::byte memory[];
  LaunchDependents();
  const bool beside = call.params.bounds.caches_values;
  if (!beside) WaitForPredecessors();
  MakeBlockKeys(call, *reinterpret_cast<ChunkKeyShared<kRank>*>(memory));
  const bool last =
      blockIdx.x + 1 == gridDim.x && blockIdx.y + 1 == gridDim.y && blockIdx.z + 1 == gridDim.z;
  if (beside && last) WaitForPredecessors();
}

template <int kRank>
absl::Status Launch(const DeviceQueue& queue, const AttendCall& call) {
  constexpr size_t kBytes = sizeof(ChunkKeyShared<kRank>);
  static_assert(kBytes <= kSharedBytes / kBlocks);
  const auto kernel = ChunkKeyKernel<kRank>;
  if (const cudaError_t error = AllowShared(kernel, kBytes); error != cudaSuccess) {
    return ToStatus(error, "shadowkv_attention: shared memory");
  }
  constexpr int64_t kRounds = 4;
  constexpr int64_t kTileTokens = int64_t{kChunks} * kTokens;
  const ShadowKvAttentionParams& params = call.params;
  const int64_t tiles = (params.bounds.max_budget_tokens + kTileTokens - 1) / kTileTokens;
  const dim3 grid(BlocksOfHead(queue, params, kRounds, kBlocks, tiles),
                  static_cast<uint32_t>(params.bounds.kv_heads),
                  static_cast<uint32_t>(params.num_sequences));
  const cudaError_t error = LaunchEarly(queue, kernel, grid, dim3(kThreads), kBytes, call);
  return ToStatus(error, "shadowkv_attention: keys");
}

}  // namespace

absl::Status ReconstructChunks(const DeviceQueue& queue, const AttendCall& call) {
  switch (call.params.bounds.chunk_key_rank) {
    case 64:
      return Launch<64>(queue, call);
    case 128:
      return Launch<128>(queue, call);
    case 160:
      return Launch<160>(queue, call);
  }
  return absl::UnimplementedError(absl::StrCat(
      "shadowkv_attention: keys of rank ", call.params.bounds.chunk_key_rank, " by chunks"));
}

}  // namespace baton::kernels::cuda::shadowkv
