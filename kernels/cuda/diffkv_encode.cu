#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "kernels/core/exec_context.h"
#include "kernels/cuda/bf16.cuh"
#include "kernels/cuda/block_sum.cuh"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/diffkv_checks.h"
#include "kernels/cuda/diffkv_pages.cuh"
#include "kernels/cuda/diffkv_token.cuh"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/kv_format/dense.h"
#include "kernels/kv_format/diffkv.h"
#include "kernels/ops/diffkv_pages.h"
#include "kernels/ops/diffkv_params.h"
#include "kernels/ops/param_checker.h"

namespace baton::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
// Tokens of a tile, in which classes are counted first: eight for each thread of a block.
constexpr int kThreadTokens = 8;
constexpr int kTileTokens = kThreads * kThreadTokens;
// The most tokens of a page.
constexpr int kMaxPageTokens = 64;

struct EncodeArgs {
  DiffKvEncodeParams params;
  int32_t tiles = 0;
  int32_t* tile_counts = nullptr;  // [kv_heads][tiles][kDiffKvTiers]: tokens by class

  __device__ int32_t new_tokens() const {
    return static_cast<int32_t>(params.tokens - params.first_token);
  }
  __device__ const DiffKvClass* Classes(int32_t head) const {
    return params.classes + int64_t{head} * new_tokens();
  }
  __device__ int32_t* TileCounts(int32_t head, int32_t tile) const {
    return tile_counts + (int64_t{head} * tiles + tile) * kDiffKvTiers;
  }
};

__device__ DiffKvClass ClassOf(int32_t tier) {
  return tier == kDiffKvHigh ? DiffKvClass::kHigh : DiffKvClass::kLow;
}

// Block (x, y) counts the classes of tile x of head y.
__global__ void __launch_bounds__(kThreads) CountTiles(const __grid_constant__ EncodeArgs args) {
  __shared__ uint32_t warp_counts[kWarps];  // high | low << 16
  const auto head = static_cast<int32_t>(blockIdx.y);
  const DiffKvClass* classes = args.Classes(head);
  uint32_t counts = 0;
#pragma unroll
  for (int i = 0; i < kThreadTokens; ++i) {
    const auto token = static_cast<int32_t>(blockIdx.x * kTileTokens + i * kThreads + threadIdx.x);
    if (token >= args.new_tokens()) break;
    const DiffKvClass token_class = classes[token];
    counts += token_class == DiffKvClass::kHigh ? 1u : 0u;
    counts += token_class == DiffKvClass::kLow ? 1u << 16 : 0u;
  }
  counts = __reduce_add_sync(kAllLanes, counts);
  if (threadIdx.x % 32 == 0) warp_counts[threadIdx.x / 32] = counts;
  __syncthreads();
  if (threadIdx.x < kDiffKvTiers) {
    uint32_t sum = 0;
    for (const uint32_t of_warp : warp_counts) sum += of_warp;
    const uint32_t shift = threadIdx.x == kDiffKvHigh ? 0 : 16;
    args.TileCounts(head, static_cast<int32_t>(blockIdx.x))[threadIdx.x] =
        static_cast<int32_t>((sum >> shift) & 0xffffu);
  }
}

// A page that gets tokens, and which: those whose rank among the new tokens of the head's class is
// from first_rank on go to the slots [begin, end).
struct PageJob {
  int32_t tier = -1;  // -1: none
  int32_t page = 0;
  int32_t first_rank = 0;
  int32_t begin = 0;
  int32_t end = 0;

  __device__ int32_t count() const { return end - begin; }
};

// The job `index` of a head: pages of the high tier that get tokens, then those of the low tier.
__device__ PageJob FindJob(const DiffKvEncodeParams& params, int32_t head, int32_t index) {
  for (int32_t tier = 0; tier < kDiffKvTiers; ++tier) {
    const int32_t page_tokens = DiffKvPageTokens(params.pages.geometry.tiers[tier]);
    const int32_t held = params.held == nullptr ? 0 : params.held[head * kDiffKvTiers + tier];
    const int32_t count = DiffKvCount(params.layer, head, tier);
    if (count <= held) continue;
    const int32_t page = held / page_tokens + index;
    const int32_t first_slot = page * page_tokens;
    if (first_slot < count) {
      const int32_t begin = held > first_slot ? held - first_slot : 0;
      const int32_t left = count - first_slot;
      return {.tier = tier,
              .page = page,
              .first_rank = first_slot + begin - held,
              .begin = begin,
              .end = left < page_tokens ? left : page_tokens};
    }
    index -= (count + page_tokens - 1) / page_tokens - held / page_tokens;
  }
  return {};
}

template <int kDim>
struct EncodeShared {
  alignas(16) std::byte page[DiffKvPageBytes(kDim)];
  // Value codes by slot; rows are apart so that the lanes that gather them meet different banks.
  alignas(16) uint8_t values[kMaxPageTokens][kDim + 8];
  int64_t source[kMaxPageTokens];  // by slot: where the token's key is in the dense pool
  int32_t tokens[kMaxPageTokens];  // by slot: the token, counted from first_token
  int32_t warp_sums[kWarps];
  int32_t start_tile;
  int32_t start_rank;  // of the first token of start_tile in its class
};

// Finds the tile that has the job's first token.
template <int kDim>
__device__ void FindStart(const EncodeArgs& args,
                          int32_t head,
                          const PageJob& job,
                          EncodeShared<kDim>& shared) {
  int32_t before = 0;
  for (int32_t chunk = 0; chunk < args.tiles; chunk += kThreads) {
    const int32_t tile = chunk + static_cast<int32_t>(threadIdx.x);
    const int32_t mine = tile < args.tiles ? args.TileCounts(head, tile)[job.tier] : 0;
    int32_t total;
    const int32_t rank = before + ExclusiveSum<kWarps>(mine, shared.warp_sums, total);
    if (rank <= job.first_rank && job.first_rank < rank + mine) {
      shared.start_tile = tile;
      shared.start_rank = rank;
    }
    before += total;
    if (job.first_rank < before) break;
  }
  __syncthreads();
}

// Lists the job's tokens by slot, in order of position.
template <int kDim>
__device__ void ListTokens(const EncodeArgs& args,
                           int32_t head,
                           const PageJob& job,
                           EncodeShared<kDim>& shared) {
  FindStart(args, head, job, shared);
  const DiffKvClass* classes = args.Classes(head);
  const DiffKvClass wanted = ClassOf(job.tier);
  int32_t tile_rank = shared.start_rank;
  for (int32_t tile = shared.start_tile;
       tile < args.tiles && tile_rank < job.first_rank + job.count();
       ++tile) {
    const int32_t first = tile * kTileTokens + static_cast<int32_t>(threadIdx.x) * kThreadTokens;
    uint32_t matches = 0;  // a bit for each of the thread's tokens
#pragma unroll
    for (int i = 0; i < kThreadTokens; ++i) {
      const bool match = first + i < args.new_tokens() && classes[first + i] == wanted;
      matches |= (match ? 1u : 0u) << i;
    }
    int32_t total;
    int32_t rank =
        tile_rank + ExclusiveSum<kWarps>(__popc(matches), shared.warp_sums, total) - job.first_rank;
    for (; matches != 0; matches &= matches - 1, ++rank) {
      if (rank >= 0 && rank < job.count()) {
        shared.tokens[job.begin + rank] = first + __ffs(static_cast<int>(matches)) - 1;
      }
    }
    tile_rank += total;
  }
  __syncthreads();
}

// The page as it is before: zero, or what it held.
template <int kDim>
__device__ void LoadPage(const std::byte* page, bool fresh, EncodeShared<kDim>& shared) {
  constexpr int kVectors = static_cast<int>(DiffKvPageBytes(kDim) / sizeof(uint4));
  auto* target = reinterpret_cast<uint4*>(shared.page);
  for (int i = static_cast<int>(threadIdx.x); i < kVectors; i += kThreads) {
    target[i] = fresh ? uint4{0, 0, 0, 0} : reinterpret_cast<const uint4*>(page)[i];
  }
}

template <int kDim>
__device__ void StorePage(const EncodeShared<kDim>& shared, std::byte* page) {
  constexpr int kVectors = static_cast<int>(DiffKvPageBytes(kDim) / sizeof(uint4));
  const auto* source = reinterpret_cast<const uint4*>(shared.page);
  for (int i = static_cast<int>(threadIdx.x); i < kVectors; i += kThreads) {
    reinterpret_cast<uint4*>(page)[i] = source[i];
  }
}

// Scores and positions of the new slots, and where their keys are.
template <int kDim>
__device__ void StageSlots(const DiffKvEncodeParams& params,
                           int32_t head,
                           const PageJob& job,
                           EncodeShared<kDim>& shared) {
  const DensePageLayout& source = params.source.layout;
  const DiffKvPageLayout layout = params.pages.geometry.layout(job.tier);
  const int32_t slot = job.begin + static_cast<int32_t>(threadIdx.x);
  if (slot < job.end) {
    const int32_t listed = shared.tokens[slot];
    const auto token = static_cast<int32_t>(params.first_token) + listed;
    const auto id = static_cast<size_t>(params.source_table[token / source.page_tokens]);
    shared.source[slot] = static_cast<int64_t>(id * source.stride_bytes() +
                                               source.key_offset(head, token % source.page_tokens));
    const DiffKvSlotRefs refs = SlotRefs(layout, shared.page, slot);
    *refs.score = params.scores[head * params.score_stride + listed];
    *refs.position = token;
  }
  __syncthreads();
}

// Quantizes the new slots: keys into the page, value codes aside. Loads of kBatch tokens are under
// way at once.
template <int kDim, DiffKvTier kTier>
__device__ void QuantizeSlots(const DiffKvEncodeParams& params,
                              const PageJob& job,
                              EncodeShared<kDim>& shared) {
  constexpr int kGroups = kThreads / kVectorLanes<kDim>;
  constexpr int kBatch = 2;
  const auto group = static_cast<int32_t>(threadIdx.x) / kVectorLanes<kDim>;
  const auto lane = static_cast<int32_t>(threadIdx.x) % kVectorLanes<kDim>;
  const size_t to_value =
      params.source.layout.value_offset(0, 0) - params.source.layout.key_offset(0, 0);
  const std::byte* base = params.source.base + lane * sizeof(uint4);
  // The same turns in all threads: lanes of a warp exchange extremes.
  for (int32_t first = job.begin; first < job.end; first += kBatch * kGroups) {
    uint4 keys[kBatch];
    uint4 values[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int32_t slot = first + b * kGroups + group;
      const std::byte* key = base + shared.source[slot < job.end ? slot : job.end - 1];
      keys[b] = __ldg(reinterpret_cast<const uint4*>(key));
      values[b] = __ldg(reinterpret_cast<const uint4*>(key + to_value));
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int32_t slot = first + b * kGroups + group;
      float x[8];
      WidenBf16(keys[b], x);
      const QuantRange key_range = FitVector<kDim>(x, kTier.key_bits);
      const uint2 key_codes = QuantizeEight(x, key_range, kTier.key_bits);
      WidenBf16(values[b], x);
      const QuantRange value_range = FitVector<kDim>(x, kTier.value_bits);
      const uint2 value_codes = QuantizeEight(x, value_range, kTier.value_bits);
      if (slot >= job.end) continue;
      StoreKeyCodes<kDim, kTier>(shared.page, slot, 8 * lane, key_codes);
      *reinterpret_cast<uint2*>(&shared.values[slot][8 * lane]) = value_codes;
      if (lane == 0) {
        const DiffKvSlotRefs refs = SlotRefs({kDim, kTier}, shared.page, slot);
        *refs.key_range = key_range;
        *refs.value_range = value_range;
      }
    }
  }
}

// Gathers the value codes of the new slots into the words of the page, a word in one thread.
template <int kDim, DiffKvTier kTier>
__device__ void PackValues(const PageJob& job, EncodeShared<kDim>& shared) {
  constexpr DiffKvPageLayout kLayout = {kDim, kTier};
  constexpr int kBits = kTier.value_bits;
  constexpr int kWords = kLayout.page_tokens() * kDim * kBits / 32;
  constexpr int kLaneWords = kLayout.value_lane_words();
  constexpr int kDimTiles = kDim / kLayout.value_tile_dims();
  constexpr int kBlockPairs = kLayout.value_tile_tokens() / 8;  // of a block of 8 dims
  constexpr uint32_t kMask = (1u << kBits) - 1u;
  auto* words = reinterpret_cast<uint32_t*>(shared.page + kLayout.value_codes());
  for (int at = static_cast<int>(threadIdx.x); at < kWords; at += kThreads) {
    const int lane = at / kLaneWords % 32;
    const int tile = at / kLaneWords / 32;
    const int first_slot = tile / kDimTiles * kLayout.value_tile_tokens() + lane % 4 * 2;
    const int first_dim = tile % kDimTiles * kLayout.value_tile_dims() + lane / 4;
    uint32_t word = words[at];
#pragma unroll
    for (int i = 0; i < 16 / kBits; ++i) {
      const int pair = at % kLaneWords * (16 / kBits) + i;
      const int dim = first_dim + pair / kBlockPairs * 8;
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const int slot = first_slot + pair % kBlockPairs * 8 + odd;
        const int shift = 16 * odd + i * kBits;
        if (slot >= job.begin && slot < job.end) {
          word = (word & ~(kMask << shift)) | (uint32_t{shared.values[slot][dim]} << shift);
        }
      }
    }
    words[at] = word;
  }
}

// Block (x, y) writes the page of job x of head y: every byte once, from an image in shared memory.
template <int kDim>
__global__ void __launch_bounds__(kThreads, 10)
    EncodePages(const __grid_constant__ EncodeArgs args) {
  __shared__ EncodeShared<kDim> shared;
  const DiffKvEncodeParams& params = args.params;
  const auto head = static_cast<int32_t>(blockIdx.y);
  const PageJob job = FindJob(params, head, static_cast<int32_t>(blockIdx.x));
  if (job.tier < 0) return;
  const int32_t id = DiffKvPageId(params.layer, head, job.tier, job.page);
  if (id < 0) return;  // the lease was too short for the head's pages
  std::byte* page = DevicePage(params.pages, id);
  LoadPage(page, job.begin == 0, shared);
  ListTokens(args, head, job, shared);
  StageSlots(params, head, job, shared);
  WithTier(params.pages.geometry.tiers[job.tier], [&]<DiffKvTier kTier>() {
    QuantizeSlots<kDim, kTier>(params, job, shared);
    __syncthreads();
    PackValues<kDim, kTier>(job, shared);
  });
  __syncthreads();
  StorePage(shared, page);
}

absl::Status Check(const DiffKvEncodeParams& params) {
  ParamChecker check("diffkv_encode");
  check.NotNegative("first_token", params.first_token)
      .AtLeast("tokens", params.tokens, params.first_token);
  if (!check.ok() || params.tokens == params.first_token) {
    return check.status();
  }
  CheckDiffKvPages(params.pages, check);
  CheckDiffKvLayer(params.layer, check);
  const DensePageLayout& source = params.source.layout;
  check.NotNull("source.base", params.source.base)
      .NotNull("source_table", params.source_table)
      .NotNull("classes", params.classes)
      .NotNull("scores", params.scores)
      .AtLeast("score_stride", params.score_stride, params.tokens - params.first_token)
      .Positive("source.layout.page_tokens", source.page_tokens)
      .Require(source.dtype == DType::kBF16,
               "source.layout.dtype",
               static_cast<int64_t>(source.dtype),
               "must be bf16")
      .Require(source.kv_heads == params.pages.geometry.kv_heads,
               "source.layout.kv_heads",
               source.kv_heads,
               "must be the pages' kv_heads")
      .Require(source.head_dim == params.pages.geometry.head_dim,
               "source.layout.head_dim",
               source.head_dim,
               "must be the pages' head_dim");
  return check.status();
}

// Pages of a head that may get tokens, whatever the classes: a first page may hold tokens already.
uint32_t MostJobs(const DiffKvEncodeParams& params) {
  const int32_t fresh = params.pages.geometry.columns_for(params.tokens - params.first_token);
  return static_cast<uint32_t>(fresh + (params.held == nullptr ? 0 : kDiffKvTiers));
}

}  // namespace

absl::Status DiffKvEncode(const ExecContext& context, const DiffKvEncodeParams& params) {
  if (absl::Status status = Check(params); !status.ok() || params.tokens == params.first_token) {
    return status;
  }
  const DiffKvGeometry& geometry = params.pages.geometry;
  const int64_t tiles = (params.tokens - params.first_token + kTileTokens - 1) / kTileTokens;
  const size_t needed =
      static_cast<size_t>(geometry.kv_heads * tiles * kDiffKvTiers) * sizeof(int32_t);
  const DeviceMemory& workspace = context.queue->workspace();
  if (needed > workspace.size()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "diffkv_encode: workspace has ", workspace.size(), " bytes but ", needed, " are needed"));
  }
  const EncodeArgs args = {.params = params,
                           .tiles = static_cast<int32_t>(tiles),
                           .tile_counts = workspace.as<int32_t>()};
  const cudaStream_t stream = context.queue->stream();
  const auto heads = static_cast<uint32_t>(geometry.kv_heads);
  CountTiles<<<dim3(static_cast<uint32_t>(tiles), heads), kThreads, 0, stream>>>(args);
  const dim3 pages(MostJobs(params), heads);
  if (geometry.head_dim == 128) {
    EncodePages<128><<<pages, kThreads, 0, stream>>>(args);
  } else {
    EncodePages<64><<<pages, kThreads, 0, stream>>>(args);
  }
  return ToStatus(cudaGetLastError(), "diffkv_encode");
}

}  // namespace baton::kernels::cuda
