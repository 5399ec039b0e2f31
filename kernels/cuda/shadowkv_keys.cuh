// Where keys and values to be coded lie, and keys as they are factored: before RoPE, less the bias.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/core/dtype.h"
#include "kernels/cuda/ptx_bf16.cuh"
#include "kernels/kv_format/dense.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/params.h"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kernels::cuda::shadowkv {

// One token's keys, or values, of all heads.
struct HeadVectors {
  const std::byte* first = nullptr;
  size_t stride = 0;  // from head to head

  __device__ const std::byte* head(int64_t index) const {
    return first + static_cast<size_t>(index) * stride;
  }
};

// Tokens that lie behind each other in a page, from `first` on.
struct TokenRun {
  int32_t first = 0;
  const std::byte* keys = nullptr;  // of that token and the first head
  const std::byte* values = nullptr;
  size_t head_bytes = 0;
  uint32_t token_bytes = 0;

  __device__ HeadVectors Keys(int32_t token) const { return At(token, keys); }
  __device__ HeadVectors Values(int32_t token) const { return At(token, values); }

 private:
  __device__ HeadVectors At(int32_t token, const std::byte* vectors) const {
    return {.first = vectors + static_cast<uint32_t>(token - first) * token_bytes,
            .stride = head_bytes};
  }
};

// A prompt's tokens in dense pages.
class PageTokens {
 public:
  __device__ PageTokens(const DensePages& pages, const int32_t* page_table)
      : base_(pages.base),
        page_table_(page_table),
        page_tokens_(static_cast<uint32_t>(pages.layout.page_tokens)),
        page_bytes_(pages.layout.stride_bytes()),
        head_bytes_(pages.layout.key_offset(1, 0)),
        token_bytes_(static_cast<uint32_t>(pages.layout.key_offset(0, 1))),
        values_(pages.layout.value_offset(0, 0)) {}

  __device__ HeadVectors Keys(int32_t token) const { return At(token, 0); }
  __device__ HeadVectors Values(int32_t token) const { return At(token, values_); }
  // Those from `token` on to the end of its page, which is looked up once.
  __device__ TokenRun RunFrom(int32_t token) const {
    const std::byte* keys = Keys(token).first;
    return {.first = token,
            .keys = keys,
            .values = keys + values_,
            .head_bytes = head_bytes_,
            .token_bytes = token_bytes_};
  }

 private:
  __device__ HeadVectors At(int32_t token, size_t segment) const {
    const uint32_t page = static_cast<uint32_t>(token) / page_tokens_;
    const uint32_t slot = static_cast<uint32_t>(token) - page * page_tokens_;
    return {.first = base_ + static_cast<size_t>(page_table_[page]) * page_bytes_ + segment +
                     slot * token_bytes_,
            .stride = head_bytes_};
  }

  const std::byte* base_;
  const int32_t* page_table_;
  uint32_t page_tokens_;
  size_t page_bytes_;
  size_t head_bytes_;
  uint32_t token_bytes_;
  size_t values_;  // of a page, from its beginning on
};

// The exact tokens that make a sequence's next coded block, from position `first` on: those left of
// the prompt's local window, then those of the tail's ring, which holds whole blocks.
class ExactTokens {
 public:
  __device__ ExactTokens(const ShadowKvSequence& sequence,
                         const ShadowKvTailLayout& tail,
                         int64_t first)
      : vector_bytes_(tail.config.vector_bytes()), slot_bytes_(tail.slot_bytes()) {
    const ShadowKvPromptLayout& layout = *sequence.layout;
    const int64_t local = (first - layout.coded.tokens) * static_cast<int64_t>(vector_bytes_);
    local_tokens_ = static_cast<int32_t>(
        min(max(layout.prompt_tokens - first, int64_t{0}), kShadowKvBlockTokens));
    local_keys_ = sequence.prompt + layout.local_keys + local;
    local_values_ = sequence.prompt + layout.local_values + local;
    local_stride_ = static_cast<size_t>(layout.local_tokens) * vector_bytes_;
    slots_ = sequence.tail + tail.exact_key(first, 0);
  }

  __device__ HeadVectors Keys(int32_t token) const { return At(token, local_keys_, 0); }
  __device__ HeadVectors Values(int32_t token) const {
    return At(token, local_values_, slot_bytes_ / 2);
  }

 private:
  __device__ HeadVectors At(int32_t token, const std::byte* local, size_t in_slot) const {
    const auto index = static_cast<size_t>(token);
    if (token < local_tokens_) {
      return {.first = local + index * vector_bytes_, .stride = local_stride_};
    }
    return {.first = slots_ + index * slot_bytes_ + in_slot, .stride = vector_bytes_};
  }

  size_t vector_bytes_;
  size_t slot_bytes_;
  int32_t local_tokens_;  // of the prompt's local window, the first ones
  const std::byte* local_keys_;
  const std::byte* local_values_;
  size_t local_stride_;     // from head to head
  const std::byte* slots_;  // of the block's first token
};

// kCount (4 or 8) neighbouring elements of a vector; `index` is a multiple of kCount.
template <int kCount>
__device__ inline void LoadElements(const std::byte* vector,
                                    DType dtype,
                                    int64_t index,
                                    float (&x)[kCount]) {
  if (dtype == DType::kF32) {
    const auto* at = reinterpret_cast<const float4*>(vector) + index / 4;
#pragma unroll
    for (int i = 0; i < kCount / 4; ++i) {
      const float4 four = at[i];
      x[4 * i] = four.x, x[4 * i + 1] = four.y, x[4 * i + 2] = four.z, x[4 * i + 3] = four.w;
    }
    return;
  }
  uint32_t words[kCount / 2];
  if constexpr (kCount == 8) {
    const uint4 vector_words = reinterpret_cast<const uint4*>(vector)[index / 8];
    words[0] = vector_words.x, words[1] = vector_words.y;
    words[2] = vector_words.z, words[3] = vector_words.w;
  } else {
    const uint2 vector_words = reinterpret_cast<const uint2*>(vector)[index / 4];
    words[0] = vector_words.x, words[1] = vector_words.y;
  }
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    x[2 * i] = LowBf16(words[i]);
    x[2 * i + 1] = HighBf16(words[i]);
  }
}

__device__ inline void StoreEight(const float (&x)[8], DType dtype, std::byte* target) {
  if (dtype == DType::kF32) {
    reinterpret_cast<float4*>(target)[0] = make_float4(x[0], x[1], x[2], x[3]);
    reinterpret_cast<float4*>(target)[1] = make_float4(x[4], x[5], x[6], x[7]);
  } else {
    *reinterpret_cast<uint4*>(target) = make_uint4(
        PackBf16(x[0], x[1]), PackBf16(x[2], x[3]), PackBf16(x[4], x[5]), PackBf16(x[6], x[7]));
  }
}

// Four numbers as sums of two of bf16 each, which leave 2^-17 of them. Both targets are aligned to
// 8 bytes.
__device__ inline void StoreSplit(const float (&x)[4], uint16_t* high, uint16_t* low) {
  const uint2 highs = make_uint2(PackBf16(x[0], x[1]), PackBf16(x[2], x[3]));
  *reinterpret_cast<uint2*>(high) = highs;
  *reinterpret_cast<uint2*>(low) =
      make_uint2(RestBf16(x[0], x[1], highs.x), RestBf16(x[2], x[3], highs.y));
}

// One element of an array.
__device__ inline float LoadElement(const std::byte* data, DType dtype, int64_t index) {
  return dtype == DType::kF32 ? reinterpret_cast<const float*>(data)[index]
                              : LowBf16(reinterpret_cast<const uint16_t*>(data)[index]);
}
__device__ inline void StoreElement(float x, DType dtype, int64_t index, std::byte* data) {
  if (dtype == DType::kF32) {
    reinterpret_cast<float*>(data)[index] = x;
  } else {
    reinterpret_cast<uint16_t*>(data)[index] = static_cast<uint16_t>(PackBf16(x, 0.0f));
  }
}

// Four neighbouring pairs (i, i + half) of a head's key.
struct KeyPairs {
  float low[4];
  float high[4];
};

// What a layer adds to its keys before RoPE, [kv_heads * head_dim] or null, and where a head's part
// begins. Not a pointer to that part or null: ptxas 13.0 may read a pointer so selected before the
// zero it wrote is there (docs/kernels/shadowkv.md).
struct HeadBias {
  const float* layer = nullptr;
  int64_t column = 0;
};

// What turns four pairs of a key.
struct PairAngles {
  float cosines[4];
  float sines[4];
};

// The pairs from `pair` on, a multiple of 4, of a key of 2 x `half` elements as it is stored.
__device__ inline KeyPairs LoadPairs(DType dtype,
                                     int32_t half,
                                     const std::byte* key,
                                     int32_t pair) {
  KeyPairs pairs;
  LoadElements(key, dtype, pair, pairs.low);
  LoadElements(key, dtype, half + pair, pairs.high);
  return pairs;
}

// The same of a key in bf16 as they are stored. What is read while something else is computed stays
// so until it is wanted: a number made of it is waited for where it is made.
struct StoredPairs {
  uint2 low;
  uint2 high;
};
__device__ inline StoredPairs LoadStoredPairs(int32_t half, const std::byte* key, int32_t pair) {
  const auto* at = reinterpret_cast<const uint2*>(key);
  return {.low = at[pair / 4], .high = at[(half + pair) / 4]};
}
__device__ inline KeyPairs Numbers(const StoredPairs& stored) {
  return {.low = {LowBf16(stored.low.x),
                  HighBf16(stored.low.x),
                  LowBf16(stored.low.y),
                  HighBf16(stored.low.y)},
          .high = {LowBf16(stored.high.x),
                   HighBf16(stored.high.x),
                   LowBf16(stored.high.y),
                   HighBf16(stored.high.y)}};
}

// What turns these pairs at `position`.
__device__ inline PairAngles LoadAngles(int32_t half,
                                        const ShadowKvRope& rope,
                                        int64_t position,
                                        int32_t pair) {
  PairAngles angles;
  const auto* cosine = reinterpret_cast<const std::byte*>(rope.cosines + position * half);
  const auto* sine = reinterpret_cast<const std::byte*>(rope.sines + position * half);
  LoadElements(cosine, DType::kF32, pair, angles.cosines);
  LoadElements(sine, DType::kF32, pair, angles.sines);
  return angles;
}

// Pairs as the basis factors them, `pair` being the first of them: the rotation undone, then less
// the bias of the head.
__device__ inline KeyPairs Factored(const KeyPairs& key,
                                    const PairAngles& angles,
                                    int32_t half,
                                    const HeadBias& bias,
                                    int32_t pair) {
  KeyPairs pairs;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float c = angles.cosines[i];
    const float s = angles.sines[i];
    pairs.low[i] = key.low[i] * c + key.high[i] * s;
    pairs.high[i] = key.high[i] * c - key.low[i] * s;
  }
  if (bias.layer != nullptr) {
    const float* of_head = bias.layer + bias.column;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      pairs.low[i] -= of_head[pair + i];
      pairs.high[i] -= of_head[half + pair + i];
    }
  }
  return pairs;
}

__device__ inline KeyPairs LoadFactored(DType dtype,
                                        int32_t half,
                                        const ShadowKvRope& rope,
                                        const std::byte* key,
                                        const HeadBias& bias,
                                        int64_t position,
                                        int32_t pair) {
  return Factored(
      LoadPairs(dtype, half, key, pair), LoadAngles(half, rope, position, pair), half, bias, pair);
}

// Layers whose keys are factored side by side: an array in the device's memory, or one.
struct FactoredLayers {
  const ShadowKvJointLayer* array = nullptr;
  ShadowKvJointLayer one;
  int64_t count = 1;

  __device__ ShadowKvJointLayer operator[](int64_t index) const {
    return array == nullptr ? one : array[index];
  }
};

}  // namespace baton::kernels::cuda::shadowkv
