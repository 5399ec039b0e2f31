#include "tests/gpu/bench/compression_prompt.h"

#include <cuda_runtime_api.h>
#include <driver_types.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "common/base/status_macros.h"
#include "kernels/core/dtype.h"
#include "kernels/core/half.h"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/kv_format/dense.h"
#include "tests/gpu/bench/compression_case.h"

namespace baton::kernels::cuda {
namespace {

constexpr uint32_t kSeed = 20240528;
constexpr int32_t kPageTokens = 32;
// Directions of keys before RoPE. Direction j weighs 1 / (1 + j / kFall), which leaves 3 % of the
// energy behind the first 160 and makes elements of about 1.
constexpr int32_t kDirections = 256;
constexpr float kFall = 16.0f;
constexpr float kLargestWeight = 0.25f;

std::vector<float> Normal(std::mt19937& random, size_t count) {
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  std::generate(values.begin(), values.end(), [&] { return normal(random); });
  return values;
}

// Rotates the heads of a token's key, pairs (i, i + head_dim / 2), by the angles of its position.
void Rotate(const float* cosines, const float* sines, float* key) {
  constexpr int32_t kHalf = CompressionCase::kHeadDim / 2;
  for (int32_t head = 0; head < CompressionCase::kKvHeads; ++head, key += 2 * kHalf) {
    for (int32_t i = 0; i < kHalf; ++i) {
      const float low = key[i];
      const float high = key[i + kHalf];
      key[i] = low * cosines[i] - high * sines[i];
      key[i + kHalf] = high * cosines[i] + low * sines[i];
    }
  }
}

}  // namespace

CompressionPrompt::CompressionPrompt(int32_t tokens)
    : tokens_(tokens),
      layout_({.page_tokens = kPageTokens,
               .kv_heads = CompressionCase::kKvHeads,
               .head_dim = CompressionCase::kHeadDim,
               .dtype = DType::kBF16}),
      angles_(std::max(tokens, kDistinctTokens), CompressionCase::kHeadDim),
      host_table_(static_cast<size_t>(layout_.pages_for(kDistinctTokens))),
      host_pages_(host_table_.size() * layout_.stride_bytes()) {
  std::iota(host_table_.begin(), host_table_.end(), 0);
  MakeKeys();
  WritePages();
}

void CompressionPrompt::MakeKeys() {
  constexpr auto kColumns = static_cast<size_t>(CompressionCase::kWidth);
  std::mt19937 random(kSeed);
  const std::vector<float> directions = Normal(random, kDirections * kColumns);
  const std::vector<float> shares = Normal(random, size_t{kDistinctTokens} * kDirections);
  factored_keys_.resize(kDistinctTokens * kColumns);
  for (size_t token = 0; token < kDistinctTokens; ++token) {
    float* key = factored_keys_.data() + token * kColumns;
    for (size_t j = 0; j < kDirections; ++j) {
      const float weight = kLargestWeight / (1.0f + static_cast<float>(j) / kFall);
      const float share = weight * shares[token * kDirections + j];
      const float* direction = directions.data() + j * kColumns;
      for (size_t i = 0; i < kColumns; ++i) key[i] += share * direction[i];
    }
  }
}

void CompressionPrompt::WritePages() {
  constexpr int32_t kHalf = CompressionCase::kHeadDim / 2;
  constexpr auto kColumns = static_cast<size_t>(CompressionCase::kWidth);
  std::mt19937 random(kSeed + 1);
  for (int32_t token = 0; token < kDistinctTokens; ++token) {
    const auto first = factored_keys_.begin() + token * CompressionCase::kWidth;
    std::vector<float> key(first, first + CompressionCase::kWidth);
    Rotate(angles_.get().cosines + token * kHalf, angles_.get().sines + token * kHalf, key.data());
    const std::vector<float> value = Normal(random, kColumns);
    std::byte* page =
        host_pages_.data() + static_cast<size_t>(token / kPageTokens) * layout_.stride_bytes();
    for (int32_t head = 0; head < CompressionCase::kKvHeads; ++head) {
      const int32_t column = head * CompressionCase::kHeadDim;
      const int32_t slot = token % kPageTokens;
      std::transform(key.begin() + column,
                     key.begin() + column + CompressionCase::kHeadDim,
                     reinterpret_cast<uint16_t*>(page + layout_.key_offset(head, slot)),
                     F32ToBF16);
      std::transform(value.begin() + column,
                     value.begin() + column + CompressionCase::kHeadDim,
                     reinterpret_cast<uint16_t*>(page + layout_.value_offset(head, slot)),
                     F32ToBF16);
    }
  }
}

absl::Status CompressionPrompt::Upload(const DeviceQueue& queue) {
  std::vector<int32_t> tables(static_cast<size_t>(CompressionCase::kLayers) *
                              static_cast<size_t>(entries()));
  std::iota(tables.begin(), tables.end(), 0);
  std::shuffle(tables.begin(), tables.end(), std::mt19937(kSeed + 2));
  const size_t stride = layout_.stride_bytes();
  pages_ = arena_.Allocate<std::byte>(static_cast<int64_t>(tables.size() * stride));
  tables_ = arena_.Upload(tables);
  rope_ = angles_.UploadTo(arena_);
  const std::byte* distinct =
      arena_.Upload(std::vector<std::byte>(host_pages_.bytes().begin(), host_pages_.bytes().end()));
  BATON_RETURN_IF_ERROR(arena_.status());
  for (size_t i = 0; i < tables.size(); ++i) {
    const size_t source = i % static_cast<size_t>(entries()) % host_table_.size();
    BATON_RETURN_IF_ERROR(ToStatus(cudaMemcpyAsync(pages_ + static_cast<size_t>(tables[i]) * stride,
                                                   distinct + source * stride,
                                                   stride,
                                                   cudaMemcpyDeviceToDevice,
                                                   queue.stream()),
                                   "copy pages of a prompt"));
  }
  return queue.Wait();
}

}  // namespace baton::kernels::cuda
