// Weights of a row's tokens as the attending warps of diffkv_attention leave them in scratch memory
// until the softmax is known: halves, relative to the reference that the warp had at their page.
// Half the bytes of scores in fp32, which take longer to be written and read than a step of 4-bit
// pages has to spare; to 2^-12 of a probability, and to 2^-24 of the largest that its page may
// have.
//
// A lane of each four has a plane, for its heads. In it pages lie one after another, high before
// low: words of two halves as lanes hold them, then the references, one float a head, padded to
// kKeptReferences. Where a lane has two heads a word is both of a token; where it has one, of a
// tile's tokens g and g + 8.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/cuda/diffkv_page_attention.cuh"
#include "kernels/cuda/diffkv_queries.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/warp.cuh"
#include "kernels/kv_format/diffkv.h"

namespace baton::kernels::cuda::diffkv {

inline constexpr int32_t kKeptReferences = 8;

// Words of a page's weights in a plane.
__host__ __device__ constexpr int32_t KeptWords(bool paired, int32_t page_tokens) {
  return DiffKvTiles(page_tokens) * (paired ? 8 : 16);
}
// The same with its references: from a page to the next one.
__host__ __device__ constexpr int32_t KeptPageWords(bool paired, int32_t page_tokens) {
  return KeptWords(paired, page_tokens) + kKeptReferences;
}
// Planes of a KV head with `group` query heads.
__host__ __device__ constexpr int32_t KeptPlanes(bool paired, int32_t group) {
  return paired ? group : (group + 1) / 2;
}
// Words of a plane with at most `tokens` tokens, in pages of which two may be partly filled. All
// planes of a head are within the `tokens` and whole pages that DiffKvScratchFloats has for every
// query head: 5/3 words a token, in three planes for five heads.
__host__ __device__ constexpr int64_t KeptPlaneWords(bool paired, int64_t tokens) {
  const int64_t whole = tokens + kDiffKvTiers * int64_t{kDiffKvMostPageTokens};
  return paired ? whole : whole * 5 / 3;
}
constexpr bool KeptPagesFit(int32_t page_tokens) {
  return KeptPageWords(true, page_tokens) <= page_tokens &&
         3 * KeptPageWords(false, page_tokens) <= 5 * page_tokens;
}
static_assert(KeptPagesFit(24) && KeptPagesFit(32) && KeptPagesFit(48) && KeptPagesFit(64));

// Where the weights of a split's query heads are kept.
struct KeptHead {
  uint32_t* planes;  // the first lane's
  int64_t plane_words;
  int32_t lanes;  // of each four, that have heads; 0: nothing is kept
};

// Writes a page's weights, and the references they are relative to, at `page` of the lane's plane.
template <int kDim, bool kPaired, int kTiles>
__device__ void KeepWeights(const DiffKvScores<kTiles, kPaired>& weights,
                            const DiffKvSoftmax<kDim, kPaired>& softmax,
                            uint32_t* page) {
  uint32_t* const own = page + LaneGroup();
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    const auto& [first, second] = weights[tile];
    if constexpr (kPaired) {
      own[8 * tile] = PackHalves(first[0], second[0]);
    } else {
      own[16 * tile] = PackHalves(first[0], first[1]);
      own[16 * tile + 8] = PackHalves(second[0], second[1]);
    }
  }
  if (LaneGroup() > 0) return;
  auto* const references = reinterpret_cast<float*>(page + kTiles * (kPaired ? 8 : 16));
#pragma unroll
  for (int c = 0; c < softmax.kHeads; ++c) references[c] = softmax.max[c];
}

}  // namespace baton::kernels::cuda::diffkv
