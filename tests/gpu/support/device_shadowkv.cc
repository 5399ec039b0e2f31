#include "tests/gpu/support/device_shadowkv.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cuda/runtime/pinned_memory.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/shadowkv_params.h"
#include "tests/gpu/support/gpu_test.h"

namespace baton::kernels::cuda {
namespace {

std::span<const std::byte> Bytes(const std::byte* data, size_t size) {
  return {data, data == nullptr ? 0 : size};
}

void CopyTo(const DeviceArray<std::byte>& source, const std::byte* target) {
  const std::vector<std::byte> bytes = source.Get();
  std::copy(bytes.begin(), bytes.end(), const_cast<std::byte*>(target));
}

void CopyTo(const PinnedBytes& source, const std::byte* target) {
  std::ranges::copy(source.bytes(), const_cast<std::byte*>(target));
}

void Fill(const DeviceArray<std::byte>& target) {
  target.Set(std::vector<std::byte>(target.size(), std::byte{0xff}));
}

}  // namespace

ShadowKvBlockSizes::ShadowKvBlockSizes(const ShadowKvSequence& host) {
  const ShadowKvPromptLayout& layout = *host.layout;
  const ShadowKvTailLayout tail_layout(layout, host.max_generated);
  const bool joint = layout.config.joint;
  prompt = layout.bytes;
  tail = tail_layout.bytes;
  cache = ShadowKvCacheLayout(layout.config, ShadowKvCachedValues::kStored).bytes;
  joint_prompt = joint ? ShadowKvCoefficientLayout(layout.config, layout.coded_tokens()).bytes : 0;
  joint_tail = joint ? tail_layout.joint_block_begin(tail_layout.block_count) : 0;
  value_prompt = layout.coded.value_bytes;
  value_tail = tail_layout.value_block_begin(tail_layout.block_count);
}

PinnedBytes::PinnedBytes(const std::byte* source, size_t size)
    : memory_(PinnedMemory().Allocate(source == nullptr ? 0 : size).value()) {
  std::copy_n(source, memory_.size(), memory_.data());
}

DeviceShadowKv::DeviceShadowKv(const ShadowKvSequence& host)
    : layout_(*host.layout),
      max_generated_(host.max_generated),
      position_(host.position),
      device_layout_(std::span(host.layout, 1)),
      prompt_(Bytes(host.prompt, ShadowKvBlockSizes(host).prompt)),
      tail_(Bytes(host.tail, ShadowKvBlockSizes(host).tail)),
      cache_(std::vector<std::byte>(ShadowKvBlockSizes(host).cache)),
      joint_prompt_(Bytes(host.joint_prompt, ShadowKvBlockSizes(host).joint_prompt)),
      joint_tail_(Bytes(host.joint_tail, ShadowKvBlockSizes(host).joint_tail)),
      value_prompt_(host.value_prompt, ShadowKvBlockSizes(host).value_prompt),
      value_tail_(host.value_tail, ShadowKvBlockSizes(host).value_tail) {
  UploadCache(host);
}

ShadowKvSequence DeviceShadowKv::get(int32_t position) const {
  return {.layout = device_layout_.data(),
          .prompt = prompt_.data(),
          .tail = tail_.data(),
          .max_generated = max_generated_,
          .position = position,
          .cache = cache_.data(),
          .joint_prompt = joint_prompt_.data(),
          .joint_tail = joint_tail_.data(),
          .value_prompt = value_prompt_.data(),
          .value_tail = value_tail_.data()};
}

void DeviceShadowKv::Upload(const ShadowKvSequence& host) {
  position_ = host.position;
  prompt_.Set(Bytes(host.prompt, prompt_.size()));
  tail_.Set(Bytes(host.tail, tail_.size()));
  joint_prompt_.Set(Bytes(host.joint_prompt, joint_prompt_.size()));
  joint_tail_.Set(Bytes(host.joint_tail, joint_tail_.size()));
  std::copy_n(host.value_prompt, value_prompt_.bytes().size(), value_prompt_.data());
  std::copy_n(host.value_tail, value_tail_.bytes().size(), value_tail_.data());
}

void DeviceShadowKv::UploadCache(const ShadowKvSequence& host) const {
  cache_.Set(Bytes(host.cache, cache_.size()));
}

void DeviceShadowKv::Download(const ShadowKvSequence& host) const {
  CopyTo(prompt_, host.prompt);
  CopyTo(tail_, host.tail);
  if (host.cache != nullptr) CopyTo(cache_, host.cache);
  CopyTo(joint_prompt_, host.joint_prompt);
  CopyTo(joint_tail_, host.joint_tail);
  CopyTo(value_prompt_, host.value_prompt);
  CopyTo(value_tail_, host.value_tail);
}

void DeviceShadowKv::Poison() {
  for (const DeviceArray<std::byte>* block : {&prompt_, &tail_, &joint_prompt_, &joint_tail_}) {
    Fill(*block);
  }
  std::ranges::fill(value_prompt_.bytes(), std::byte{0xff});
  std::ranges::fill(value_tail_.bytes(), std::byte{0xff});
}

DeviceShadowKvRope::DeviceShadowKvRope(const ShadowKvRope& host, int64_t head_dim)
    : positions_(host.positions),
      cosines_(std::span(host.cosines, static_cast<size_t>(host.positions * head_dim / 2))),
      sines_(std::span(host.sines, static_cast<size_t>(host.positions * head_dim / 2))) {}

ShadowKvRope DeviceShadowKvRope::get() const {
  return {.cosines = cosines_.data(), .sines = sines_.data(), .positions = positions_};
}

ShadowKvBounds BoundsOf(std::span<const ShadowKvSequence> host) {
  const ShadowKvConfig& first = host.front().layout->config;
  ShadowKvBounds bounds = {.dtype = first.dtype,
                           .kv_heads = first.kv_heads,
                           .head_dim = first.head_dim,
                           .max_chunks = 1,
                           .cached = true,
                           .chunk_key_rank = ShadowKvChunkKeyRank(first)};
  for (const ShadowKvSequence& sequence : host) {
    const ShadowKvPromptLayout& layout = *sequence.layout;
    const ShadowKvConfig& config = layout.config;
    const int64_t tokens = int64_t{sequence.position} + 1;
    const int64_t coded = ShadowKvTailLayout(layout, sequence.max_generated).CodedTokensAt(tokens);
    const int64_t exact = layout.static_chunks * config.chunk_tokens + tokens - coded;
    bounds.max_chunks = std::max(bounds.max_chunks, coded / config.chunk_tokens);
    bounds.max_budget_tokens =
        std::max(bounds.max_budget_tokens, config.budget_chunks() * config.chunk_tokens);
    bounds.max_exact_tokens = std::max(bounds.max_exact_tokens, exact);
    bounds.cached = bounds.cached && sequence.cache != nullptr;
    if (ShadowKvChunkKeyRank(config) != bounds.chunk_key_rank) bounds.chunk_key_rank = 0;
    bounds.caches_values =
        bounds.caches_values || (config.values_apart && sequence.cache != nullptr);
  }
  return bounds;
}

}  // namespace baton::kernels::cuda
