#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/core/carver.h"
#include "kernels/cuda/shadowkv_gram.cuh"
#include "kernels/cuda/shadowkv_keys.cuh"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kernels::cuda::shadowkv {
namespace {

constexpr int kThreads = 256;
// Results of a block, and tokens in shared memory at once.
constexpr int kTile = 64;
constexpr int kStageTokens = 16;
// Tokens that are summed in fp32.
constexpr int64_t kPlainTokens = 256;
// Numbers of a slab: two of them fit the second-level cache.
constexpr int64_t kSlabFloats = int64_t{1} << 22;
// Blocks that keep the device busy: tokens are split among so many.
constexpr int64_t kEnoughBlocks = 528;
constexpr int kMirrorTile = 32;

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
  float* target = args.scratch.slab + row * columns;
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
    const KeyPairs pairs = LoadFactored(config,
                                        problem.rope,
                                        keys.head(head),
                                        {.layer = from.key_bias, .column = column},
                                        token,
                                        pair);
    float* at = target + layer * config.width() + column + pair;
    *reinterpret_cast<float4*>(at) =
        make_float4(pairs.low[0], pairs.low[1], pairs.low[2], pairs.low[3]);
    *reinterpret_cast<float4*>(at + half) =
        make_float4(pairs.high[0], pairs.high[1], pairs.high[2], pairs.high[3]);
  }
  for (int64_t c = int64_t{steps} * 8 + threadIdx.x; c < columns; c += kThreads) target[c] = 0.0f;
}

struct GramStage {
  float rows[2][kStageTokens][kTile];
  float columns[2][kStageTokens][kTile];
};

// A thread's 4 x 4 results: rows 4 (thread / 16) and columns 4 (thread % 16) and the next three.
struct GramResults {
  float plain[4][4] = {};
  double sums[4][4] = {};

  __device__ void Flush() {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        sums[i][j] += double{plain[i][j]};
        plain[i][j] = 0.0f;
      }
    }
  }
};

__device__ void AddStage(const GramStage& stage, int buffer, GramResults& results) {
  const int t = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int k = 0; k < kStageTokens; ++k) {
    const float4 r = *reinterpret_cast<const float4*>(&stage.rows[buffer][k][t / 16 * 4]);
    const float4 c = *reinterpret_cast<const float4*>(&stage.columns[buffer][k][t % 16 * 4]);
    const float rows[4] = {r.x, r.y, r.z, r.w};
    const float columns[4] = {c.x, c.y, c.z, c.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        results.plain[i][j] = __fmaf_rn(rows[i], columns[j], results.plain[i][j]);
      }
    }
  }
}

// Adds up the products of two tiles of columns over the slab's tokens [begin, end), both multiples
// of a stage. A stage is loaded while the one before is multiplied.
__device__ void SumProducts(const GramScratch& scratch,
                            int64_t begin,
                            int64_t end,
                            GramStage& stage,
                            GramResults& results) {
  const int row = static_cast<int>(threadIdx.x) / 16;
  const int column = static_cast<int>(threadIdx.x) % 16 * 4;
  const float* of_rows = scratch.slab + blockIdx.y * kTile + column;
  const float* of_columns = scratch.slab + blockIdx.x * kTile + column;
  const auto load = [&](const float* from, int64_t token) {
    return *reinterpret_cast<const float4*>(from + (token + row) * scratch.columns);
  };
  float4 next_rows = {};
  float4 next_columns = {};
  if (begin < end) {
    next_rows = load(of_rows, begin);
    next_columns = load(of_columns, begin);
  }
  int buffer = 0;
  for (int64_t token = begin; token < end; token += kStageTokens, buffer ^= 1) {
    *reinterpret_cast<float4*>(&stage.rows[buffer][row][column]) = next_rows;
    *reinterpret_cast<float4*>(&stage.columns[buffer][row][column]) = next_columns;
    __syncthreads();  // everyone is done with the other buffer too
    if (token + kStageTokens < end) {
      next_rows = load(of_rows, token + kStageTokens);
      next_columns = load(of_columns, token + kStageTokens);
    }
    AddStage(stage, buffer, results);
    if ((token + kStageTokens - begin) % kPlainTokens == 0) results.Flush();
  }
  results.Flush();
}

// Block (x, y, z) adds part z of the slab's tokens to tile (y, x) of the Gram matrix z; only tiles
// on and right of the diagonal.
__global__ void __launch_bounds__(kThreads)
    AddSlab(const __grid_constant__ GramScratch scratch, int64_t rows, bool fresh) {
  __shared__ GramStage stage;
  if (blockIdx.x < blockIdx.y) return;
  const int64_t stages = rows / kStageTokens;
  const int64_t part = (stages + scratch.splits - 1) / scratch.splits * kStageTokens;
  const int64_t begin = blockIdx.z * part;
  GramResults results;
  SumProducts(scratch, begin, min(rows, begin + part), stage, results);
  double* gram = scratch.gram + blockIdx.z * scratch.columns * scratch.columns;
  const int64_t row = int64_t{blockIdx.y} * kTile + threadIdx.x / 16 * 4;
  const int64_t column = int64_t{blockIdx.x} * kTile + threadIdx.x % 16 * 4;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    double* at = gram + (row + i) * scratch.columns + column;
#pragma unroll
    for (int j = 0; j < 4; ++j) at[j] = (fresh ? 0.0 : at[j]) + results.sums[i][j];
  }
}

// Adds the splits up and fills in the other half.
__global__ void __launch_bounds__(kThreads)
    FinishGram(const __grid_constant__ GramScratch scratch) {
  __shared__ double tile[kMirrorTile][kMirrorTile + 1];
  if (blockIdx.x < blockIdx.y) return;
  const int64_t columns = scratch.columns;
  const int c = static_cast<int>(threadIdx.x) % kMirrorTile;
  const int64_t row = int64_t{blockIdx.y} * kMirrorTile;
  const int64_t column = int64_t{blockIdx.x} * kMirrorTile;
  for (int r = static_cast<int>(threadIdx.x) / kMirrorTile; r < kMirrorTile;
       r += kThreads / kMirrorTile) {
    const int64_t at = (row + r) * columns + column + c;
    double sum = scratch.gram[at];
    for (int64_t split = 1; split < scratch.splits; ++split) {
      sum += scratch.gram[split * columns * columns + at];
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
  scratch.columns = (columns + kTile - 1) / kTile * kTile;
  const int64_t tiles = scratch.columns / kTile;
  const int64_t blocks = tiles * (tiles + 1) / 2;
  scratch.splits = std::clamp<int64_t>(
      (kEnoughBlocks + blocks - 1) / blocks, 1, (tokens + kPlainTokens - 1) / kPlainTokens);
  const int64_t slab = std::min(tokens, std::max(kPlainTokens, kSlabFloats / scratch.columns));
  scratch.slab_tokens = (slab + kStageTokens - 1) / kStageTokens * kStageTokens;
  scratch.gram = carver.Take<double>(scratch.splits * scratch.columns * scratch.columns);
  scratch.slab = carver.Take<float>(scratch.slab_tokens * scratch.columns);
  return scratch;
}

void ComputeGram(const FactorProblem& problem, const GramScratch& scratch, cudaStream_t stream) {
  const auto tiles = static_cast<uint32_t>(scratch.columns / kTile);
  const auto mirror_tiles = static_cast<uint32_t>(scratch.columns / kMirrorTile);
  for (int64_t first = 0; first < problem.tokens; first += scratch.slab_tokens) {
    const int64_t count = std::min(scratch.slab_tokens, problem.tokens - first);
    const int64_t rows = (count + kStageTokens - 1) / kStageTokens * kStageTokens;
    FillSlab<<<static_cast<uint32_t>(rows), kThreads, 0, stream>>>(
        {.problem = problem, .scratch = scratch, .first = first, .count = count});
    AddSlab<<<dim3(tiles, tiles, static_cast<uint32_t>(scratch.splits)), kThreads, 0, stream>>>(
        scratch, rows, first == 0);
  }
  FinishGram<<<dim3(mirror_tiles, mirror_tiles), kThreads, 0, stream>>>(scratch);
}

}  // namespace baton::kernels::cuda::shadowkv
