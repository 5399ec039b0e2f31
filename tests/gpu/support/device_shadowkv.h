// Sequences in format `shadowkv` on the device, twins of sequences on the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/core/memory.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/shadowkv_params.h"
#include "tests/gpu/support/gpu_test.h"

namespace baton::kernels::cuda {

// Sizes of the blocks of memory of one layer of a sequence.
struct ShadowKvBlockSizes {
  explicit ShadowKvBlockSizes(const ShadowKvSequence& host);

  size_t prompt;
  size_t tail;
  size_t cache;
  size_t joint_prompt;  // 0 without joint coefficients, like the next one
  size_t joint_tail;
  size_t value_prompt;  // 0 but for values apart, like the next one
  size_t value_tail;
};

// Memory of the host that the device reads and writes.
class PinnedBytes {
 public:
  // A copy of what there is at `source`; nothing for null.
  PinnedBytes(const std::byte* source, size_t size);

  std::byte* data() const { return memory_.data(); }
  std::span<std::byte> bytes() const { return {memory_.data(), memory_.size()}; }

 private:
  Memory memory_;
};

// One layer of a sequence on the device: its layout, prompt section, tail, cache and, with joint
// coefficients, those of prompt and tail. Values apart are in memory of the host. Made as a copy of
// what a sequence on the host names (where that has no cache, with an empty one). Transfers wait
// for themselves, not for a queue: its work must be done before (GpuTest::Wait).
class DeviceShadowKv {
 public:
  explicit DeviceShadowKv(const ShadowKvSequence& host);

  // The sequence in memory of this object, at the position that the host's was at last, or at
  // another one.
  ShadowKvSequence get() const { return get(position_); }
  ShadowKvSequence get(int32_t position) const;

  // Makes the device's copy equal to the host's, of the same shape: all but the cache, and the
  // position.
  void Upload(const ShadowKvSequence& host);
  void UploadCache(const ShadowKvSequence& host) const;
  // The inverse, with the cache if the host has one; `host` names memory that may be written.
  void Download(const ShadowKvSequence& host) const;
  // Every byte of what encoding and appending write becomes 0xff.
  void Poison();

  const ShadowKvPromptLayout& layout() const { return layout_; }
  std::vector<std::byte> prompt() const { return prompt_.Get(); }
  std::vector<std::byte> tail() const { return tail_.Get(); }
  std::vector<std::byte> cache() const { return cache_.Get(); }
  std::vector<std::byte> joint_prompt() const { return joint_prompt_.Get(); }
  std::vector<std::byte> joint_tail() const { return joint_tail_.Get(); }
  std::span<const std::byte> value_tail() const { return value_tail_.bytes(); }
  // Where an op writes them.
  std::byte* prompt_data() const { return prompt_.data(); }
  std::byte* joint_prompt_data() const { return joint_prompt_.data(); }

 private:
  ShadowKvPromptLayout layout_;
  int64_t max_generated_;
  int32_t position_;
  DeviceArray<ShadowKvPromptLayout> device_layout_;
  DeviceArray<std::byte> prompt_;
  DeviceArray<std::byte> tail_;
  DeviceArray<std::byte> cache_;
  DeviceArray<std::byte> joint_prompt_;
  DeviceArray<std::byte> joint_tail_;
  PinnedBytes value_prompt_;
  PinnedBytes value_tail_;
};

// Angles on the device.
class DeviceShadowKvRope {
 public:
  DeviceShadowKvRope(const ShadowKvRope& host, int64_t head_dim);

  // Names memory of this object.
  ShadowKvRope get() const;

 private:
  int64_t positions_;
  DeviceArray<float> cosines_;
  DeviceArray<float> sines_;
};

// What a device has to be told of sequences on the host.
ShadowKvBounds BoundsOf(std::span<const ShadowKvSequence> host);

}  // namespace baton::kernels::cuda
