// A prompt in dense pages, on the host and on the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"

#include "kernels/core/buffer.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/kv_format/dense.h"
#include "kernels/ops/params.h"
#include "kernels/ops/shadowkv_params.h"
#include "tests/gpu/bench/compression_case.h"
#include "tests/gpu/bench/device_arena.h"
#include "tests/gpu/bench/shadowkv_angles.h"

namespace baton::kernels::cuda {

// Keys after RoPE and values in bf16, the same in all layers, each of which has pages of its own.
// Keys before RoPE lie along directions of falling weight, as a model's do; from kDistinctTokens
// on, pages repeat.
class CompressionPrompt {
 public:
  static constexpr int32_t kDistinctTokens = 512;

  explicit CompressionPrompt(int32_t tokens);

  // Copies the pages to the device in all layers; waits for the queue.
  absl::Status Upload(const DeviceQueue& queue);

  int32_t tokens() const { return tokens_; }
  const DensePageLayout& layout() const { return layout_; }
  // On the device, after Upload.
  DensePages pages() const { return {.base = pages_, .layout = layout_}; }
  const int32_t* table(int32_t layer) const { return tables_ + int64_t{layer} * entries(); }
  const ShadowKvRope& rope() const { return rope_; }
  // On the host, for at most kDistinctTokens tokens.
  DensePages host_pages() { return {.base = host_pages_.data(), .layout = layout_}; }
  const int32_t* host_table() const { return host_table_.data(); }
  ShadowKvRope host_rope() const { return angles_.get(); }
  // Keys before RoPE, [kDistinctTokens][width]; those stored differ by their rounding.
  const std::vector<float>& factored_keys() const { return factored_keys_; }

 private:
  int32_t entries() const { return layout_.pages_for(tokens_); }  // of a layer's table
  void MakeKeys();
  void WritePages();

  int32_t tokens_;
  DensePageLayout layout_;
  ShadowKvAngles angles_;
  std::vector<float> factored_keys_;
  std::vector<int32_t> host_table_;
  Buffer host_pages_;
  DeviceArena arena_;
  std::byte* pages_ = nullptr;
  int32_t* tables_ = nullptr;  // [layers][entries]
  ShadowKvRope rope_;
};

}  // namespace baton::kernels::cuda
