#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
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
// Numbers of a slab, 16 MiB: they stay in the second-level cache until they are multiplied.
constexpr int64_t kSlabNumbers = int64_t{1} << 23;
// Sums in fp32 of all parts, if one part does not take more.
constexpr int64_t kPartSums = int64_t{7} << 20;
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

__device__ void StoreFour(const double (&x)[4], double* at) {
  reinterpret_cast<double2*>(at)[0] = make_double2(x[0], x[1]);
  reinterpret_cast<double2*>(at)[1] = make_double2(x[2], x[3]);
}

// Adds what the parts' sums have on and above the diagonal to the Gram matrix, which is zero before
// if `fresh`, and fills in the other half. A thread has four neighbouring elements of a tile.
__global__ void __launch_bounds__(kAddThreads)
    AddParts(const __grid_constant__ GramScratch scratch, int64_t parts, bool fresh) {
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
  for (int64_t part = 0; part < parts; ++part) {
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

// A slab's tokens as parts of equal length.
struct SlabParts {
  int64_t count = 0;
  int64_t tokens = 0;  // of each, with zeros behind the last

  explicit SlabParts(int64_t slab_tokens)
      : count((slab_tokens + kMostPartTokens - 1) / kMostPartTokens),
        tokens(RoundUp((slab_tokens + count - 1) / count, kPartStep)) {}
};

// Sums of each part. Products of the low halves are left out: they are 2^-18 of the others.
absl::Status SumParts(DeviceQueue& queue, const GramScratch& scratch, const SlabParts& parts) {
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
                     .products = parts.count};
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
absl::Status ComputeGramOf(DeviceQueue& queue,
                           const FactorProblem& problem,
                           const GramScratch& scratch) {
  const auto mirror_tiles = static_cast<uint32_t>(scratch.columns / kMirrorTile);
  const cudaStream_t stream = queue.stream();
  const bool in_page = problem.pages.layout.page_tokens % kFillTokens == 0;
  const auto fill = in_page ? FillSlab<kHalves, true> : FillSlab<kHalves, false>;
  for (int64_t first = 0; first < problem.tokens; first += scratch.slab_tokens) {
    const int64_t count = std::min(scratch.slab_tokens, problem.tokens - first);
    const SlabParts parts(count);
    const auto fill_blocks = static_cast<uint32_t>(parts.count * parts.tokens / kFillTokens);
    fill<<<fill_blocks, kFillThreads, 0, stream>>>(
        {.problem = problem, .scratch = scratch, .first = first, .count = count});
    if (absl::Status status = SumParts(queue, scratch, parts); !status.ok()) {
      return status;
    }
    AddParts<<<dim3(mirror_tiles, mirror_tiles), kAddThreads, 0, stream>>>(
        scratch, parts.count, first == 0);
  }
  return absl::OkStatus();
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
                                     kMostPartTokens * std::max<int64_t>(1, kPartSums / square));
  scratch.slab_tokens = std::min(tokens, most_slab);
  const SlabParts parts(scratch.slab_tokens);
  scratch.sums = carver.Take<float>(parts.count * square);
  scratch.high = carver.Take<uint16_t>(parts.count * parts.tokens * scratch.columns);
  if (Halves(dtype) == 2) {
    scratch.low = carver.Take<uint16_t>(parts.count * parts.tokens * scratch.columns);
  }
  return scratch;
}

absl::Status ComputeGram(DeviceQueue& queue,
                         const FactorProblem& problem,
                         const GramScratch& scratch) {
  const auto compute = Halves(problem.config.dtype) == 2 ? ComputeGramOf<2> : ComputeGramOf<1>;
  return compute(queue, problem, scratch);
}

}  // namespace baton::kernels::cuda::shadowkv
