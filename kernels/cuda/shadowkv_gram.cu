#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/core/carver.h"
#include "kernels/core/dtype.h"
#include "kernels/core/round_up.h"
#include "kernels/cuda/allow_shared.h"
#include "kernels/cuda/device_code.h"
#include "kernels/cuda/matmul_f64.cuh"
#include "kernels/cuda/ptx_bf16.cuh"
#include "kernels/cuda/ptx_tile.cuh"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/cuda/shadowkv_gram.cuh"
#include "kernels/cuda/shadowkv_keys.cuh"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kernels::cuda::shadowkv {
namespace {

constexpr int kAddThreads = 256;
constexpr int kFillThreads = 128;
// Tokens that a block un-rotates, a divisor of a slab's, and that a thread reads at once.
constexpr int kFillTokens = 8;
constexpr int kTurnTokens = 2;
// Results of a block, of 2 x 2 warps with kWarpRows x kWarpColumns each: what a warp reads of
// shared memory for an operand of 16 tokens is eight matrices of 16 x 16 for 32 products of 16 x 8.
constexpr int kTile = 128;
constexpr int kWarpRows = 64;
constexpr int kWarpColumns = 64;
constexpr int kSumThreads = 32 * (kTile / kWarpRows) * (kTile / kWarpColumns);
// Tokens that are multiplied between two synchronisations where keys are one number each, a
// multiple of a matrix operand's 16, and how many times as many are in shared memory, of which
// older devices have less (device_code.h).
constexpr int kMostStageTokens = 64;
constexpr int Stages(bool hopper_code) { return hopper_code ? 3 : 2; }
// A token's elements in shared memory: rows of 16 bytes more than a power of two spread what a
// matrix operand reads over all banks.
constexpr int kTokenStride = kTile + 8;
// Tokens that are summed in fp32, at most and, where there are more, at least.
constexpr int64_t kMostPlainTokens = 1280;
constexpr int64_t kLeastPlainTokens = 256;
// Numbers of a slab, 16 MiB: they stay in the second-level cache until they are multiplied.
constexpr int64_t kSlabNumbers = int64_t{1} << 23;
// Sums in fp32 of all parts, if one part does not take more.
constexpr int64_t kPartSums = int64_t{7} << 20;
// Two blocks for each multiprocessor of an H200: tokens are split among no more.
constexpr int64_t kEnoughBlocks = 264;
constexpr int kMirrorTile = 32;

// Into how many bf16 numbers an element of a key goes.
int Halves(DType dtype) { return dtype == DType::kBF16 ? 1 : 2; }

struct SlabArgs {
  FactorProblem problem;
  GramScratch scratch;
  int64_t first = 0;  // token
  int64_t count = 0;  // tokens; zeros follow in the slab
};

// Which elements of a token's keys a thread un-rotates: four pairs of a head.
struct FilledPairs {
  ShadowKvJointLayer layer;
  int32_t head = 0;
  int32_t pair = 0;
  int64_t column = 0;  // of the slab
};

__device__ FilledPairs PairsOfStep(const FactorProblem& problem, int32_t step) {
  const ShadowKvConfig& config = problem.config;
  const int32_t head_steps = config.head_dim / 8;
  const int32_t layer_steps = config.kv_heads * head_steps;
  const int32_t layer = step / layer_steps;
  const int32_t head = step % layer_steps / head_steps;
  const int32_t pair = step % head_steps * 4;
  return {.layer = problem.layers[layer],
          .head = head,
          .pair = pair,
          .column = layer * config.width() + int64_t{head} * config.head_dim + pair};
}

template <int kHalves>
__device__ void StoreNumbers(const float (&x)[4], const GramScratch& scratch, int64_t at) {
  if constexpr (kHalves == 2) {
    StoreSplit(x, scratch.high + at, scratch.low + at);
  } else {
    __stcg(reinterpret_cast<uint2*>(scratch.high + at),
           make_uint2(PackBf16(x[0], x[1]), PackBf16(x[2], x[3])));
  }
}

// Un-rotates a thread's pairs of the kFillTokens tokens of the slab from `first_row` on, from
// `tokens` (PageTokens or a run of them).
template <int kHalves, typename Tokens>
__device__ void FillPairs(const SlabArgs& args,
                          const FilledPairs& filled,
                          const Tokens& tokens,
                          int64_t first_row) {
  constexpr DType kDType = kHalves == 2 ? DType::kF32 : DType::kBF16;
  const FactorProblem& problem = args.problem;
  const int32_t half = problem.config.head_dim / 2;
  const HeadBias bias = {.layer = filled.layer.key_bias,
                         .column = int64_t{filled.head} * problem.config.head_dim};
  // Not unrolled: what a block executes once takes longer to be fetched than to be executed.
#pragma unroll 1
  for (int turn = 0; turn < kFillTokens; turn += kTurnTokens) {
    KeyPairs keys[kTurnTokens];
    PairAngles angles[kTurnTokens];
#pragma unroll
    for (int t = 0; t < kTurnTokens; ++t) {
      // Past the last token the last one is read.
      const auto token =
          static_cast<int32_t>(args.first + min(first_row + turn + t, args.count - 1));
      keys[t] = LoadPairs(kDType, half, tokens.Keys(token).head(filled.head), filled.pair);
      angles[t] = LoadAngles(half, problem.rope, token, filled.pair);
    }
#pragma unroll
    for (int t = 0; t < kTurnTokens; ++t) {
      const int64_t row = first_row + turn + t;
      KeyPairs pairs = Factored(keys[t], angles[t], half, bias, filled.pair);
      if (row >= args.count) pairs = {};
      const int64_t at = row * args.scratch.columns + filled.column;
      StoreNumbers<kHalves>(pairs.low, args.scratch, at);
      StoreNumbers<kHalves>(pairs.high, args.scratch, at + half);
    }
  }
}

// Block x un-rotates the tokens [kFillTokens x, kFillTokens (x + 1)) of the slab. Where these lie
// in one page (kInPage), it is looked up once.
template <int kHalves, bool kInPage>
__global__ void __launch_bounds__(kFillThreads) FillSlab(const __grid_constant__ SlabArgs args) {
  const FactorProblem& problem = args.problem;
  const int64_t columns = args.scratch.columns;
  const int64_t first_row = int64_t{blockIdx.x} * kFillTokens;
  const auto steps = static_cast<int32_t>(problem.columns() / 8);
  for (int32_t step = static_cast<int32_t>(threadIdx.x); step < steps; step += kFillThreads) {
    const FilledPairs filled = PairsOfStep(problem, step);
    const PageTokens tokens(problem.pages, filled.layer.page_table);
    if constexpr (kInPage) {
      const int64_t first = args.first + min(first_row, args.count - 1);
      const TokenRun run = tokens.RunFrom(static_cast<int32_t>(first));
      FillPairs<kHalves>(args, filled, run, first_row);
    } else {
      FillPairs<kHalves>(args, filled, tokens, first_row);
    }
  }
  const auto padding = static_cast<int32_t>(columns - problem.columns());
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < padding * kFillTokens;
       i += kFillThreads) {
    const int64_t at = (first_row + i / padding) * columns + problem.columns() + i % padding;
    args.scratch.high[at] = 0;
    if (kHalves == 2) args.scratch.low[at] = 0;
  }
}

// Elements of a stage's tokens in the columns of the block's rows and of its columns.
template <int kHalves>
struct GramStage {
  static constexpr int kTokens = kMostStageTokens / kHalves;

  uint16_t rows[kHalves][kTokens][kTokenStride];
  uint16_t columns[kHalves][kTokens][kTokenStride];
};

// What a thread copies of every stage: eight elements of every kTurnTokens-th token, in the columns
// of the block's rows and in its own; zeros for columns past the last.
template <int kHalves>
class StageCopies {
 public:
  // Of the slab's tokens from `token` on.
  __device__ StageCopies(const GramScratch& scratch, int64_t token) : columns_(scratch.columns) {
    const auto enter = [&](int64_t tile, const uint16_t*(&from)[kHalves], uint32_t& bytes) {
      const int64_t column = tile * kTile + Column();
      bytes = column < columns_ ? 16 : 0;
      const int64_t at = (token + Token()) * columns_ + (bytes > 0 ? column : 0);
      from[0] = scratch.high + at;
      if constexpr (kHalves == 2) from[1] = scratch.low + at;
    };
    enter(blockIdx.y, rows_, row_bytes_);
    enter(blockIdx.x, columns_of_block_, column_bytes_);
  }

  // Starts the copies of the next stage.
  __device__ void Start(GramStage<kHalves>& stage) {
    constexpr int kTokens = GramStage<kHalves>::kTokens;
    static_assert(kTokens % kTurnTokens == 0);
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
#pragma unroll
      for (int t = 0; t < kTokens; t += kTurnTokens) {
        const int to = Token() + t;
        CopyAsync16(&stage.rows[half][to][Column()], rows_[half] + t * columns_, row_bytes_);
        CopyAsync16(&stage.columns[half][to][Column()],
                    columns_of_block_[half] + t * columns_,
                    column_bytes_);
      }
      rows_[half] += kTokens * columns_;
      columns_of_block_[half] += kTokens * columns_;
    }
  }

 private:
  static constexpr int kTokenThreads = kTile / 8;
  static constexpr int kTurnTokens = kSumThreads / kTokenThreads;

  __device__ static int Token() { return static_cast<int>(threadIdx.x) / kTokenThreads; }
  __device__ static int Column() { return static_cast<int>(threadIdx.x) % kTokenThreads * 8; }

  int64_t columns_;  // of the slab
  const uint16_t* rows_[kHalves];
  const uint16_t* columns_of_block_[kHalves];
  uint32_t row_bytes_;
  uint32_t column_bytes_;
};

// A warp's results: rows 16 i and columns 8 j on, as MultiplyAddBf16 has them.
struct GramResults {
  float at[kWarpRows / 16][kWarpColumns / 8][4] = {};
};

__device__ int FirstWarpRow() { return static_cast<int>(threadIdx.x) / 32 / 2 * kWarpRows; }
__device__ int FirstWarpColumn() { return static_cast<int>(threadIdx.x) / 32 % 2 * kWarpColumns; }

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
template <int kHalves>
__device__ void AddStage(const GramStage<kHalves>& stage, GramResults& results) {
#pragma unroll
  for (int token = 0; token < GramStage<kHalves>::kTokens; token += 16) {
    uint32_t columns[kHalves][kWarpColumns / 8][2];
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      LoadColumns(stage.columns[half] + token, columns[half]);
    }
#pragma unroll
    for (int i = 0; i < kWarpRows / 16; ++i) {
      uint32_t rows[kHalves][4];
#pragma unroll
      for (int half = 0; half < kHalves; ++half) LoadRows(stage.rows[half] + token, i, rows[half]);
#pragma unroll
      for (int j = 0; j < kWarpColumns / 8; ++j) {
        if constexpr (kHalves == 2) {
          MultiplyAddBf16(results.at[i][j], rows[1], columns[0][j]);
          MultiplyAddBf16(results.at[i][j], rows[0], columns[1][j]);
        }
        MultiplyAddBf16(results.at[i][j], rows[0], columns[0][j]);
      }
    }
  }
}

// Adds up the products over the slab's tokens [begin, end), both multiples of a stage's.
template <int kHalves>
__device__ void SumProducts(const GramScratch& scratch,
                            int64_t begin,
                            int64_t end,
                            GramStage<kHalves>* stages,
                            GramResults& results) {
  constexpr int kTokens = GramStage<kHalves>::kTokens;
  constexpr int kStages = Stages(kHopperCode);
  const auto count = static_cast<int32_t>((end - begin) / kTokens);
  StageCopies<kHalves> copies(scratch, begin);
  const auto copy = [&](int32_t index, int32_t slot) {
    if (index < count) copies.Start(stages[slot]);
    CommitCopies();
  };
  for (int32_t index = 0; index < kStages - 1; ++index) copy(index, index);
  int32_t slot = 0;
  for (int32_t index = 0; index < count; ++index) {
    WaitForCopies<kStages - 2>();
    __syncthreads();  // everyone is done with the stage before too
    copy(index + kStages - 1, slot == 0 ? kStages - 1 : slot - 1);
    AddStage(stages[slot], results);
    slot = slot + 1 == kStages ? 0 : slot + 1;
  }
}

// Block (x, y, z) sums part z of the slab's first `tokens` tokens for tile (y, x) of the Gram
// matrix; only tiles on and right of the diagonal.
template <int kHalves>
__global__ void __launch_bounds__(kSumThreads, 2)
    SumSlab(const __grid_constant__ GramScratch scratch, int64_t tokens) {
  extern __shared__ __align__(16) std::byte memory[];
  if (blockIdx.x < blockIdx.y) return;
  constexpr int64_t kStep = kMostStageTokens;
  const int64_t part = (tokens / kStep + scratch.parts - 1) / scratch.parts * kStep;
  const int64_t begin = min(tokens, blockIdx.z * part);
  GramResults results;
  SumProducts(scratch,
              begin,
              min(tokens, begin + part),
              reinterpret_cast<GramStage<kHalves>*>(memory),
              results);
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

__device__ void StoreFour(const double (&x)[4], double* at) {
  reinterpret_cast<double2*>(at)[0] = make_double2(x[0], x[1]);
  reinterpret_cast<double2*>(at)[1] = make_double2(x[2], x[3]);
}

// Adds the parts' sums to the Gram matrix, which is zero before if `fresh`, and fills in the other
// half. A thread has four neighbouring elements of a tile.
__global__ void __launch_bounds__(kAddThreads)
    AddParts(const __grid_constant__ GramScratch scratch, bool fresh) {
  constexpr int kRowThreads = kMirrorTile / 4;
  static_assert(kMirrorTile * kRowThreads == kAddThreads);
  __shared__ double tile[kMirrorTile][kMirrorTile + 1];
  if (blockIdx.x < blockIdx.y) return;
  const int64_t columns = scratch.columns;
  const int r = static_cast<int>(threadIdx.x) / kRowThreads;
  const int c = static_cast<int>(threadIdx.x) % kRowThreads * 4;
  const int64_t row = int64_t{blockIdx.y} * kMirrorTile;
  const int64_t column = int64_t{blockIdx.x} * kMirrorTile;
  const int64_t at = (row + r) * columns + column + c;
  double sum[4] = {};
  if (!fresh) {
    const double2 low = reinterpret_cast<const double2*>(scratch.gram + at)[0];
    const double2 high = reinterpret_cast<const double2*>(scratch.gram + at)[1];
    sum[0] = low.x, sum[1] = low.y, sum[2] = high.x, sum[3] = high.y;
  }
#pragma unroll 8
  for (int64_t part = 0; part < scratch.parts; ++part) {
    const float4 more =
        *reinterpret_cast<const float4*>(scratch.sums + part * columns * columns + at);
    sum[0] += double{more.x}, sum[1] += double{more.y};
    sum[2] += double{more.z}, sum[3] += double{more.w};
  }
  StoreFour(sum, scratch.gram + at);
  if (row == column) return;
#pragma unroll
  for (int i = 0; i < 4; ++i) tile[c + i][r] = sum[i];
  __syncthreads();
  const double mirrored[4] = {tile[r][c], tile[r][c + 1], tile[r][c + 2], tile[r][c + 3]};
  StoreFour(mirrored, scratch.gram + (column + r) * columns + row + c);
}

template <int kHalves>
void ComputeGramOf(const DeviceQueue& queue,
                   const FactorProblem& problem,
                   const GramScratch& scratch) {
  const auto tiles = static_cast<uint32_t>(RoundUp(scratch.columns, kTile) / kTile);
  const dim3 blocks(tiles, tiles, static_cast<uint32_t>(scratch.parts));
  const auto mirror_tiles = static_cast<uint32_t>(scratch.columns / kMirrorTile);
  const cudaStream_t stream = queue.stream();
  const size_t shared = Stages(queue.device().has_hopper_code) * sizeof(GramStage<kHalves>);
  const bool in_page = problem.pages.layout.page_tokens % kFillTokens == 0;
  const auto fill = in_page ? FillSlab<kHalves, true> : FillSlab<kHalves, false>;
  // A refusal shows when the kernel is launched.
  (void)AllowShared(SumSlab<kHalves>, shared);
  for (int64_t first = 0; first < problem.tokens; first += scratch.slab_tokens) {
    const int64_t count = std::min(scratch.slab_tokens, problem.tokens - first);
    const int64_t rows = RoundUp(count, kMostStageTokens);
    fill<<<static_cast<uint32_t>(rows / kFillTokens), kFillThreads, 0, stream>>>(
        {.problem = problem, .scratch = scratch, .first = first, .count = count});
    SumSlab<kHalves><<<blocks, kSumThreads, shared, stream>>>(scratch, rows);
    AddParts<<<dim3(mirror_tiles, mirror_tiles), kAddThreads, 0, stream>>>(scratch, first == 0);
  }
}

}  // namespace

double* CarveGramMatrix(int64_t columns, Carver& carver) {
  const int64_t padded = RoundUp(columns, kTileF64);
  return carver.Take<double>(padded * padded);
}

GramScratch CarveGram(DType dtype, int64_t columns, int64_t tokens, Carver& carver) {
  GramScratch scratch;
  scratch.columns = RoundUp(columns, kTileF64);
  const int64_t square = scratch.columns * scratch.columns;
  const int64_t most_slab = std::min(kSlabNumbers / (Halves(dtype) * scratch.columns),
                                     kMostPlainTokens * std::max<int64_t>(1, kPartSums / square));
  const int64_t slab = std::min(tokens, most_slab);
  scratch.slab_tokens = RoundUp(slab, kMostStageTokens);
  const int64_t most_parts = RoundUp(slab, kLeastPlainTokens) / kLeastPlainTokens;
  const int64_t least_parts = RoundUp(slab, kMostPlainTokens) / kMostPlainTokens;
  const int64_t sums = std::max(least_parts * square, std::min(most_parts * square, kPartSums));
  const int64_t tiles = RoundUp(columns, kTile) / kTile;
  const int64_t blocks = tiles * (tiles + 1) / 2;
  scratch.parts =
      std::max(least_parts, std::min({most_parts, sums / square, kEnoughBlocks / blocks}));
  scratch.sums = carver.Take<float>(sums);
  scratch.high = carver.Take<uint16_t>(scratch.slab_tokens * scratch.columns);
  if (Halves(dtype) == 2) {
    scratch.low = carver.Take<uint16_t>(scratch.slab_tokens * scratch.columns);
  }
  return scratch;
}

void ComputeGram(const DeviceQueue& queue,
                 const FactorProblem& problem,
                 const GramScratch& scratch) {
  const auto compute = Halves(problem.config.dtype) == 2 ? ComputeGramOf<2> : ComputeGramOf<1>;
  compute(queue, problem, scratch);
}

}  // namespace baton::kernels::cuda::shadowkv
