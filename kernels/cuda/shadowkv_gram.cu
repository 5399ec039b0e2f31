#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/core/carver.h"
#include "kernels/cuda/allow_shared.h"
#include "kernels/cuda/matmul_f64.cuh"
#include "kernels/cuda/ptx_bf16.cuh"
#include "kernels/cuda/ptx_tile.cuh"
#include "kernels/cuda/shadowkv_gram.cuh"
#include "kernels/cuda/shadowkv_keys.cuh"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kernels::cuda::shadowkv {
namespace {

constexpr int kThreads = 256;
// Results of a block, of 2 x 4 warps with kWarpRows x kWarpColumns each.
constexpr int kTile = 128;
constexpr int kWarpRows = 64;
constexpr int kWarpColumns = 32;
// Tokens that are multiplied between two synchronisations, a multiple of a matrix operand's 16, and
// how many times as many are in shared memory.
constexpr int kStageTokens = 32;
constexpr int kStages = 3;
// A token's elements in shared memory: rows of 16 bytes more than a power of two spread what a
// matrix operand reads over all banks.
constexpr int kTokenStride = kTile + 8;
// Tokens that are summed in fp32, at most and, where there are more, at least.
constexpr int64_t kMostPlainTokens = 1024;
constexpr int64_t kLeastPlainTokens = 256;
// Keys of a slab: two of them fit the second-level cache.
constexpr int64_t kSlabKeys = int64_t{1} << 22;
// Sums in fp32 of all parts, if one part does not take more.
constexpr int64_t kPartSums = int64_t{7} << 20;
// Two blocks for each multiprocessor of an H200: tokens are split among no more.
constexpr int64_t kEnoughBlocks = 264;
constexpr int kMirrorTile = 32;

int64_t RoundUp(int64_t count, int64_t step) { return (count + step - 1) / step * step; }

struct SlabArgs {
  FactorProblem problem;
  GramScratch scratch;
  int64_t first = 0;  // token
  int64_t count = 0;  // tokens; zeros follow in the slab
};

// Block x un-rotates token x of the slab.
__global__ void __launch_bounds__(kThreads) FillSlab(const __grid_constant__ SlabArgs args) {
  const FactorProblem& problem = args.problem;
  const ShadowKvConfig& config = problem.config;
  const int64_t columns = args.scratch.columns;
  const int64_t row = blockIdx.x;
  const auto token = static_cast<int32_t>(args.first + row);
  uint16_t* high = args.scratch.high + row * columns;
  uint16_t* low = args.scratch.low + row * columns;
  const int32_t half = config.head_dim / 2;
  const int32_t head_steps = half / 4;
  const int32_t layer_steps = config.kv_heads * head_steps;
  const auto steps =
      row < args.count ? static_cast<int32_t>(problem.layers.count) * layer_steps : 0;
  for (int32_t step = static_cast<int32_t>(threadIdx.x); step < steps; step += kThreads) {
    const int32_t layer = step / layer_steps;
    const int32_t head = step % layer_steps / head_steps;
    const int32_t pair = step % head_steps * 4;
    const ShadowKvJointLayer from = problem.layers[layer];
    const int64_t column = int64_t{head} * config.head_dim;
    const HeadVectors keys = PageTokens{problem.pages, from.page_table}.Keys(token);
    const KeyPairs pairs = LoadFactored(config.dtype,
                                        half,
                                        problem.rope,
                                        keys.head(head),
                                        {.layer = from.key_bias, .column = column},
                                        token,
                                        pair);
    const int64_t at = layer * config.width() + column + pair;
    StoreSplit(pairs.low, high + at, low + at);
    StoreSplit(pairs.high, high + at + half, low + at + half);
  }
  for (int64_t c = int64_t{steps} * 8 + threadIdx.x; c < columns; c += kThreads) {
    high[c] = 0;
    low[c] = 0;
  }
}

// Elements of a stage's tokens in the columns of the block's rows and of its columns.
struct GramStage {
  uint16_t row_high[kStageTokens][kTokenStride];
  uint16_t row_low[kStageTokens][kTokenStride];
  uint16_t column_high[kStageTokens][kTokenStride];
  uint16_t column_low[kStageTokens][kTokenStride];
};

// Starts the copy of the slab's tokens from `token` on, zeros for columns past the last.
__device__ void CopyStage(const GramScratch& scratch, int64_t token, GramStage& stage) {
  constexpr int kCopies = kTile / 8;  // of a token
  for (int at = static_cast<int>(threadIdx.x); at < kStageTokens * kCopies; at += kThreads) {
    const int t = at / kCopies;
    const int c = at % kCopies * 8;
    const auto copy = [&](const uint16_t* from, int64_t tile, uint16_t* to) {
      const int64_t column = tile * kTile + c;
      const bool there = column < scratch.columns;
      CopyAsync16(to, from + (token + t) * scratch.columns + (there ? column : 0), there ? 16 : 0);
    };
    copy(scratch.high, blockIdx.y, &stage.row_high[t][c]);
    copy(scratch.low, blockIdx.y, &stage.row_low[t][c]);
    copy(scratch.high, blockIdx.x, &stage.column_high[t][c]);
    copy(scratch.low, blockIdx.x, &stage.column_low[t][c]);
  }
}

// A warp's results: rows 16 i and columns 8 j on, as MultiplyAddBf16 has them.
struct GramResults {
  float at[kWarpRows / 16][kWarpColumns / 8][4] = {};
};

__device__ int FirstWarpRow() { return static_cast<int>(threadIdx.x) / 32 / 4 * kWarpRows; }
__device__ int FirstWarpColumn() { return static_cast<int>(threadIdx.x) / 32 % 4 * kWarpColumns; }

// The second operand of 16 tokens and the warp's columns.
__device__ void LoadColumns(const uint16_t (*tokens)[kTokenStride],
                            uint32_t (&columns)[kWarpColumns / 8][2]) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int j = 0; j < kWarpColumns / 8; j += 2) {
    uint32_t x[4];
    LoadTransposed(&tokens[lane % 16][FirstWarpColumn() + 8 * j + lane / 16 * 8], x);
    columns[j][0] = x[0], columns[j][1] = x[1];
    columns[j + 1][0] = x[2], columns[j + 1][1] = x[3];
  }
}

// The first operand of 16 tokens and 16 of the warp's rows.
__device__ void LoadRows(const uint16_t (*tokens)[kTokenStride], int i, uint32_t (&rows)[4]) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  LoadTransposed(&tokens[lane / 16 * 8 + lane % 8][FirstWarpRow() + 16 * i + lane / 8 % 2 * 8],
                 rows);
}

// Products of the low halves are left out: they are 2^-18 of the others.
__device__ void AddStage(const GramStage& stage, GramResults& results) {
#pragma unroll
  for (int token = 0; token < kStageTokens; token += 16) {
    uint32_t column_high[kWarpColumns / 8][2];
    uint32_t column_low[kWarpColumns / 8][2];
    LoadColumns(stage.column_high + token, column_high);
    LoadColumns(stage.column_low + token, column_low);
#pragma unroll
    for (int i = 0; i < kWarpRows / 16; ++i) {
      uint32_t row_high[4];
      uint32_t row_low[4];
      LoadRows(stage.row_high + token, i, row_high);
      LoadRows(stage.row_low + token, i, row_low);
#pragma unroll
      for (int j = 0; j < kWarpColumns / 8; ++j) {
        MultiplyAddBf16(results.at[i][j], row_low, column_high[j]);
        MultiplyAddBf16(results.at[i][j], row_high, column_low[j]);
        MultiplyAddBf16(results.at[i][j], row_high, column_high[j]);
      }
    }
  }
}

// Adds up the products over the slab's tokens [begin, end), both multiples of a stage.
__device__ void SumProducts(const GramScratch& scratch,
                            int64_t begin,
                            int64_t end,
                            GramStage* stages,
                            GramResults& results) {
  const int64_t count = (end - begin) / kStageTokens;
  const auto copy = [&](int64_t index) {
    if (index < count) {
      CopyStage(scratch, begin + index * kStageTokens, stages[index % kStages]);
    }
    CommitCopies();
  };
  for (int64_t index = 0; index < kStages - 1; ++index) copy(index);
  for (int64_t index = 0; index < count; ++index) {
    WaitForCopies<kStages - 2>();
    __syncthreads();  // everyone is done with the stage before too
    copy(index + kStages - 1);
    AddStage(stages[index % kStages], results);
  }
}

// Block (x, y, z) sums part z of the slab's first `tokens` tokens for tile (y, x) of the Gram
// matrix; only tiles on and right of the diagonal.
__global__ void __launch_bounds__(kThreads, 2)
    SumSlab(const __grid_constant__ GramScratch scratch, int64_t tokens) {
  extern __shared__ __align__(16) std::byte memory[];
  if (blockIdx.x < blockIdx.y) return;
  const int64_t part = (tokens / kStageTokens + scratch.parts - 1) / scratch.parts * kStageTokens;
  const int64_t begin = min(tokens, blockIdx.z * part);
  GramResults results;
  SumProducts(
      scratch, begin, min(tokens, begin + part), reinterpret_cast<GramStage*>(memory), results);
  const int64_t columns = scratch.columns;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t first_row = int64_t{blockIdx.y} * kTile + FirstWarpRow() + lane / 4;
  const int64_t first_column = int64_t{blockIdx.x} * kTile + FirstWarpColumn() + lane % 4 * 2;
  float* sums = scratch.sums + blockIdx.z * columns * columns;
#pragma unroll
  for (int i = 0; i < kWarpRows / 8; ++i) {
    const int64_t row = first_row + 8 * i;
#pragma unroll
    for (int j = 0; j < kWarpColumns / 8; ++j) {
      const int64_t column = first_column + 8 * j;
      if (row >= columns || column >= columns) continue;
      const float(&at)[4] = results.at[i / 2][j];
      *reinterpret_cast<float2*>(sums + row * columns + column) =
          make_float2(at[i % 2 * 2], at[i % 2 * 2 + 1]);
    }
  }
}

// Adds the parts' sums to the Gram matrix, which is zero before if `fresh`, and fills in the other
// half.
__global__ void __launch_bounds__(kThreads)
    AddParts(const __grid_constant__ GramScratch scratch, bool fresh) {
  __shared__ double tile[kMirrorTile][kMirrorTile + 1];
  if (blockIdx.x < blockIdx.y) return;
  const int64_t columns = scratch.columns;
  const int c = static_cast<int>(threadIdx.x) % kMirrorTile;
  const int64_t row = int64_t{blockIdx.y} * kMirrorTile;
  const int64_t column = int64_t{blockIdx.x} * kMirrorTile;
  for (int r = static_cast<int>(threadIdx.x) / kMirrorTile; r < kMirrorTile;
       r += kThreads / kMirrorTile) {
    const int64_t at = (row + r) * columns + column + c;
    double sum = fresh ? 0.0 : scratch.gram[at];
    for (int64_t part = 0; part < scratch.parts; ++part) {
      sum += double{scratch.sums[part * columns * columns + at]};
    }
    scratch.gram[at] = sum;
    tile[r][c] = sum;
  }
  __syncthreads();
  if (row == column) return;
  for (int r = static_cast<int>(threadIdx.x) / kMirrorTile; r < kMirrorTile;
       r += kThreads / kMirrorTile) {
    scratch.gram[(column + r) * columns + row + c] = tile[c][r];
  }
}

}  // namespace

GramScratch CarveGram(int64_t columns, int64_t tokens, Carver& carver) {
  GramScratch scratch;
  scratch.columns = RoundUp(columns, kTileF64);
  const int64_t slab = std::min(tokens, std::max(kLeastPlainTokens, kSlabKeys / scratch.columns));
  scratch.slab_tokens = RoundUp(slab, kStageTokens);
  const int64_t square = scratch.columns * scratch.columns;
  const int64_t most_parts = RoundUp(slab, kLeastPlainTokens) / kLeastPlainTokens;
  const int64_t least_parts = RoundUp(slab, kMostPlainTokens) / kMostPlainTokens;
  const int64_t sums = std::max(least_parts * square, std::min(most_parts * square, kPartSums));
  const int64_t tiles = RoundUp(columns, kTile) / kTile;
  const int64_t blocks = tiles * (tiles + 1) / 2;
  scratch.parts =
      std::max(least_parts, std::min({most_parts, sums / square, kEnoughBlocks / blocks}));
  scratch.gram = carver.Take<double>(square);
  scratch.sums = carver.Take<float>(sums);
  scratch.high = carver.Take<uint16_t>(scratch.slab_tokens * scratch.columns);
  scratch.low = carver.Take<uint16_t>(scratch.slab_tokens * scratch.columns);
  return scratch;
}

void ComputeGram(const FactorProblem& problem, const GramScratch& scratch, cudaStream_t stream) {
  const auto tiles = static_cast<uint32_t>(RoundUp(scratch.columns, kTile) / kTile);
  const dim3 blocks(tiles, tiles, static_cast<uint32_t>(scratch.parts));
  const auto mirror_tiles = static_cast<uint32_t>(scratch.columns / kMirrorTile);
  constexpr size_t kShared = kStages * sizeof(GramStage);
  // A refusal shows when the kernel is launched.
  (void)AllowShared(SumSlab, kShared);
  for (int64_t first = 0; first < problem.tokens; first += scratch.slab_tokens) {
    const int64_t count = std::min(scratch.slab_tokens, problem.tokens - first);
    const int64_t rows = RoundUp(count, kStageTokens);
    FillSlab<<<static_cast<uint32_t>(rows), kThreads, 0, stream>>>(
        {.problem = problem, .scratch = scratch, .first = first, .count = count});
    SumSlab<<<blocks, kThreads, kShared, stream>>>(scratch, rows);
    AddParts<<<dim3(mirror_tiles, mirror_tiles), kThreads, 0, stream>>>(scratch, first == 0);
  }
}

}  // namespace baton::kernels::cuda::shadowkv
