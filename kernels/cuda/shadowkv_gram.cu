#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/core/carver.h"
#include "kernels/core/dtype.h"
#include "kernels/core/round_up.h"
#include "kernels/cuda/cublas/matmul_plan.h"
#include "kernels/cuda/cublas/matmul_plans.h"
#include "kernels/cuda/matmul_f64.cuh"
#include "kernels/cuda/ptx_bf16.cuh"
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
// Tokens that are summed in fp32 at most, and of which a part is a multiple: prompts of any length
// are products of few shapes.
constexpr int64_t kMostPartTokens = 4096;
constexpr int64_t kPartStep = 256;
// Numbers of all problems' slabs, 16 MiB: they stay in the second-level cache until they are
// multiplied.
constexpr int64_t kSlabNumbers = int64_t{1} << 23;
// Sums in fp32 of all parts, if one part of each problem does not take more.
constexpr int64_t kPartSums = int64_t{7} << 20;
constexpr int kMirrorTile = 32;

// Into how many bf16 numbers an element of a key goes.
int Halves(DType dtype) { return dtype == DType::kBF16 ? 1 : 2; }

// A slab's tokens as parts of equal length.
struct SlabParts {
  int64_t count = 0;
  int64_t tokens = 0;  // of each, with zeros behind the last

  SlabParts() = default;
  explicit SlabParts(int64_t slab_tokens)
      : count((slab_tokens + kMostPartTokens - 1) / kMostPartTokens),
        tokens(RoundUp((slab_tokens + count - 1) / count, kPartStep)) {}
};

struct EachGram {
  GramProblem at[kShadowKvMostFactored];
};

struct SlabArgs {
  FactorProblem problem;
  EachGram each;
  GramScratch scratch;
  SlabParts parts;
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

__device__ FilledPairs PairsOfStep(const ShadowKvConfig& config,
                                   const FactoredLayers& layers,
                                   int32_t step) {
  const int32_t head_steps = config.head_dim / 8;
  const int32_t layer_steps = config.kv_heads * head_steps;
  const int32_t layer = step / layer_steps;
  const int32_t head = step % layer_steps / head_steps;
  const int32_t pair = step % head_steps * 4;
  return {.layer = layers[layer],
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
// `tokens` (PageTokens or a run of them), into the slab's numbers from `slab` on.
template <int kHalves, typename Tokens>
__device__ void FillPairs(const SlabArgs& args,
                          const FilledPairs& filled,
                          const Tokens& tokens,
                          int64_t first_row,
                          int64_t slab) {
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
      const int64_t at = slab + row * args.scratch.columns + filled.column;
      StoreNumbers<kHalves>(pairs.low, args.scratch, at);
      StoreNumbers<kHalves>(pairs.high, args.scratch, at + half);
    }
  }
}

// Block (x, y) un-rotates the tokens [kFillTokens x, kFillTokens (x + 1)) of the slab of problem y.
// Where these lie in one page (kInPage), it is looked up once.
template <int kHalves, bool kInPage>
__global__ void __launch_bounds__(kFillThreads) FillSlab(const __grid_constant__ SlabArgs args) {
  const FactorProblem& problem = args.problem;
  const FactoredLayers& layers = args.each.at[blockIdx.y].layers;
  const int64_t columns = args.scratch.columns;
  const int64_t first_row = int64_t{blockIdx.x} * kFillTokens;
  const int64_t slab = blockIdx.y * args.parts.count * args.parts.tokens * columns;
  const auto steps = static_cast<int32_t>(problem.columns() / 8);
  for (int32_t step = static_cast<int32_t>(threadIdx.x); step < steps; step += kFillThreads) {
    const FilledPairs filled = PairsOfStep(problem.config, layers, step);
    const PageTokens tokens(problem.pages, filled.layer.page_table);
    if constexpr (kInPage) {
      const int64_t first = args.first + min(first_row, args.count - 1);
      const TokenRun run = tokens.RunFrom(static_cast<int32_t>(first));
      FillPairs<kHalves>(args, filled, run, first_row, slab);
    } else {
      FillPairs<kHalves>(args, filled, tokens, first_row, slab);
    }
  }
  const auto padding = static_cast<int32_t>(columns - problem.columns());
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < padding * kFillTokens;
       i += kFillThreads) {
    const int64_t at = slab + (first_row + i / padding) * columns + problem.columns() + i % padding;
    args.scratch.high[at] = 0;
    if (kHalves == 2) args.scratch.low[at] = 0;
  }
}

__device__ void StoreFour(const double (&x)[4], double* at) {
  reinterpret_cast<double2*>(at)[0] = make_double2(x[0], x[1]);
  reinterpret_cast<double2*>(at)[1] = make_double2(x[2], x[3]);
}

// Writes the Gram matrix of problem z: what the parts' sums have on and above the diagonal, added
// to what the matrix `before` has there, and the other half. A thread has four neighbouring
// elements of a tile.
__global__ void __launch_bounds__(kAddThreads) AddParts(const __grid_constant__ EachGram each,
                                                        const __grid_constant__ GramScratch scratch,
                                                        int64_t parts) {
  constexpr int kRowThreads = kMirrorTile / 4;
  static_assert(kMirrorTile * kRowThreads == kAddThreads);
  __shared__ double tile[kMirrorTile][kMirrorTile + 1];
  if (blockIdx.x < blockIdx.y) return;
  const int64_t columns = scratch.columns;
  const double* before = each.at[blockIdx.z].before;
  double* gram = each.at[blockIdx.z].gram;
  const float* sums = scratch.sums + blockIdx.z * parts * columns * columns;
  const int r = static_cast<int>(threadIdx.x) / kRowThreads;
  const int c = static_cast<int>(threadIdx.x) % kRowThreads * 4;
  const int64_t row = int64_t{blockIdx.y} * kMirrorTile;
  const int64_t column = int64_t{blockIdx.x} * kMirrorTile;
  const int64_t at = (row + r) * columns + column + c;
  double sum[4] = {};
  if (before != nullptr) {
    const double2 low = reinterpret_cast<const double2*>(before + at)[0];
    const double2 high = reinterpret_cast<const double2*>(before + at)[1];
    sum[0] = low.x, sum[1] = low.y, sum[2] = high.x, sum[3] = high.y;
  }
#pragma unroll 8
  for (int64_t part = 0; part < parts; ++part) {
    const float4 more = *reinterpret_cast<const float4*>(sums + part * columns * columns + at);
    sum[0] += double{more.x}, sum[1] += double{more.y};
    sum[2] += double{more.z}, sum[3] += double{more.w};
  }
  StoreFour(sum, gram + at);
  if (row == column) return;
#pragma unroll
  for (int i = 0; i < 4; ++i) tile[c + i][r] = sum[i];
  __syncthreads();
  const double mirrored[4] = {tile[r][c], tile[r][c + 1], tile[r][c + 2], tile[r][c + 3]};
  StoreFour(mirrored, gram + (column + r) * columns + row + c);
}

// Sums of each part of `problems` slabs. Products of the low halves are left out: they are 2^-18 of
// the others.
absl::Status SumParts(DeviceQueue& queue,
                      const GramScratch& scratch,
                      const SlabParts& parts,
                      int64_t problems) {
  const absl::StatusOr<MatmulPlans*> plans = queue.matmul_plans();
  if (!plans.ok()) {
    return plans.status();
  }
  MatmulCall call = {.x = scratch.high,
                     .x_stride = scratch.columns,
                     .weight = scratch.high,
                     .out = scratch.sums,
                     .out_stride = scratch.columns,
                     .rows = scratch.columns,
                     .out_features = scratch.columns,
                     .in_features = parts.tokens,
                     .wide = true,
                     .by_feature = true,
                     .products = problems * parts.count};
  absl::Status status = (*plans)->Run(call, {}, queue.stream());
  if (scratch.low == nullptr) {
    return status;
  }
  call.accumulate = true;
  call.weight = scratch.low;
  if (status.ok()) {
    status = (*plans)->Run(call, {}, queue.stream());
  }
  std::swap(call.x, call.weight);
  return status.ok() ? (*plans)->Run(call, {}, queue.stream()) : status;
}

template <int kHalves>
absl::Status ComputeGramsOf(DeviceQueue& queue, SlabArgs args, int64_t problems) {
  const FactorProblem& problem = args.problem;
  const int64_t slab_tokens = args.scratch.slab_tokens;
  const auto count = static_cast<uint32_t>(problems);
  const auto mirror_tiles = static_cast<uint32_t>(args.scratch.columns / kMirrorTile);
  const cudaStream_t stream = queue.stream();
  const bool in_page =
      problem.pages.layout.page_tokens % kFillTokens == 0 && args.first % kFillTokens == 0;
  const auto fill = in_page ? FillSlab<kHalves, true> : FillSlab<kHalves, false>;
  for (; args.first < problem.tokens; args.first += slab_tokens) {
    args.count = std::min(slab_tokens, problem.tokens - args.first);
    args.parts = SlabParts(args.count);
    const auto blocks = static_cast<uint32_t>(args.parts.count * args.parts.tokens / kFillTokens);
    fill<<<dim3(blocks, count), kFillThreads, 0, stream>>>(args);
    if (absl::Status status = SumParts(queue, args.scratch, args.parts, problems); !status.ok()) {
      return status;
    }
    AddParts<<<dim3(mirror_tiles, mirror_tiles, count), kAddThreads, 0, stream>>>(
        args.each, args.scratch, args.parts.count);
    for (GramProblem& each : args.each.at) each.before = each.gram;
  }
  return absl::OkStatus();
}

}  // namespace

int64_t GramColumns(int64_t columns) { return RoundUp(columns, kTileF64); }

GramScratch CarveGrams(
    DType dtype, int64_t columns, int64_t tokens, int64_t problems, Carver& carver) {
  GramScratch scratch;
  scratch.columns = GramColumns(columns);
  const int64_t square = scratch.columns * scratch.columns;
  const int64_t most_numbers = kSlabNumbers / (problems * Halves(dtype) * scratch.columns);
  const int64_t most_slab =
      std::min(std::max(most_numbers / kFillTokens, int64_t{1}) * kFillTokens,
               kMostPartTokens * std::max<int64_t>(1, kPartSums / (problems * square)));
  scratch.slab_tokens = std::min(tokens, most_slab);
  const SlabParts parts(scratch.slab_tokens);
  const int64_t numbers = problems * parts.count * parts.tokens * scratch.columns;
  scratch.sums = carver.Take<float>(problems * parts.count * square);
  scratch.high = carver.Take<uint16_t>(numbers);
  if (Halves(dtype) == 2) {
    scratch.low = carver.Take<uint16_t>(numbers);
  }
  return scratch;
}

absl::Status ComputeGrams(DeviceQueue& queue,
                          const FactorProblem& problem,
                          std::span<const GramProblem> problems,
                          int64_t token_begin,
                          const GramScratch& scratch) {
  EachGram each = {};
  for (size_t i = 0; i < problems.size(); ++i) {
    each.at[i] = problems[i];
    if (token_begin == 0) each.at[i].before = nullptr;
  }
  const SlabArgs args = {.problem = problem,
                         .each = each,
                         .scratch = scratch,
                         .parts = {},
                         .first = token_begin,
                         .count = 0};
  const auto compute = Halves(problem.config.dtype) == 2 ? ComputeGramsOf<2> : ComputeGramsOf<1>;
  return compute(queue, args, static_cast<int64_t>(problems.size()));
}

}  // namespace baton::kernels::cuda::shadowkv
