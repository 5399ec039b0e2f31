#include "tests/gpu/bench/shadowkv_pool.h"

#include <cuda_runtime_api.h>
#include <driver_types.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <numeric>
#include <random>
#include <vector>

#include "common/base/status_macros.h"
#include "kernels/core/half.h"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/cuda/runtime/pinned_memory.h"
#include "kernels/kv_format/quantize.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/shadowkv_params.h"
#include "tests/gpu/bench/fill.h"
#include "tests/gpu/bench/shadowkv_angles.h"
#include "tests/gpu/bench/shadowkv_load.h"

namespace baton::kernels::cuda {
namespace {

constexpr uint32_t kSeed = 20240526;
constexpr float kScale = 2.0f;

// bf16 values of a prompt section that spread over [-scale, scale].
struct ExactSection {
  size_t begin;
  size_t bytes;
  float scale;
};

// Rows of the basis have length 1, and keys that are made of them the variance of values that
// spread over [-kScale, kScale].
std::vector<ExactSection> ExactSections(const ShadowKvPromptLayout& layout) {
  const ShadowKvConfig& config = layout.config;
  const auto rank = static_cast<size_t>(config.rank);
  const auto heads = static_cast<size_t>(config.kv_heads);
  const auto width = static_cast<float>(config.width());
  const size_t coded = layout.coded_begin;
  std::vector<ExactSection> sections = {
      {.begin = layout.basis,
       .bytes = rank * heads * config.vector_bytes(),
       .scale = std::sqrt(3.0f / width)},
      {.begin = coded + layout.coded.coefficients,
       .bytes = static_cast<size_t>(layout.coded.tokens) * rank * sizeof(uint16_t),
       .scale = kScale * std::sqrt(width / static_cast<float>(config.rank))},
      // Keys and values of static chunks and of the window.
      {.begin = layout.static_keys, .bytes = layout.bytes - layout.static_keys, .scale = kScale}};
  if (!config.quantized_landmarks()) {
    sections.push_back(
        {.begin = coded + layout.coded.landmarks,
         .bytes = heads * static_cast<size_t>(layout.coded.chunks) * config.vector_bytes(),
         .scale = kScale});
  }
  return sections;
}

std::vector<int32_t> ChooseStatic(const ShadowKvPromptLayout& layout) {
  std::vector<int32_t> chunks(static_cast<size_t>(layout.coded.chunks));
  std::iota(chunks.begin(), chunks.end(), 0);
  std::mt19937 random(kSeed);
  std::vector<int32_t> ids;
  for (int32_t head = 0; head < layout.config.kv_heads; ++head) {
    // Keeps the order.
    std::sample(
        chunks.begin(), chunks.end(), std::back_inserter(ids), layout.static_chunks, random);
  }
  return ids;
}

// `count` bytes of codes.
std::vector<std::byte> MakeBytes(size_t count, uint32_t seed) {
  std::vector<std::byte> bytes(count);
  std::minstd_rand random(seed);
  std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<std::byte>(random() >> 8); });
  return bytes;
}

// Ranges of vectors in codes, [-x, x] for x near kScale.
void MakeRanges(int64_t count, int32_t bits, uint32_t seed, std::byte* target) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> largest(0.75f * kScale, 1.25f * kScale);
  std::generate_n(reinterpret_cast<QuantRange*>(target), count, [&] {
    const float x = largest(random);
    return FitQuantRange(-x, x, bits);
  });
}

// Values as they are stored of all coded tokens of a sequence: codes, or bf16 in [-kScale, kScale].
std::vector<std::byte> MakeValues(const ShadowKvPromptLayout& layout) {
  const ShadowKvConfig& config = layout.config;
  const size_t count =
      static_cast<size_t>(config.kv_heads * layout.coded.tokens) * config.coded_value_bytes();
  if (config.quantized_values()) {
    return MakeBytes(count, kSeed + 1);
  }
  std::vector<std::byte> bytes(count);
  std::minstd_rand random(kSeed + 1);
  std::uniform_real_distribution<float> value(-kScale, kScale);
  std::generate_n(reinterpret_cast<uint16_t*>(bytes.data()), bytes.size() / sizeof(uint16_t), [&] {
    return F32ToBF16(value(random));
  });
  return bytes;
}

// The part of a prompt section that holds landmarks in codes, codes of values, unless they are
// apart, their scales and the static ids.
struct CodedPart {
  explicit CodedPart(const ShadowKvPromptLayout& layout)
      : begin(layout.coded_begin + First(layout)), bytes(layout.static_keys - begin) {}

  static size_t First(const ShadowKvPromptLayout& layout) {
    if (layout.config.quantized_landmarks()) return layout.coded.landmarks;
    return layout.config.values_apart ? layout.coded.value_scales : layout.coded.values;
  }

  size_t begin;
  size_t bytes;
};

std::vector<std::byte> MakeCodes(const ShadowKvPromptLayout& layout,
                                 const std::vector<std::byte>& values,
                                 const std::vector<int32_t>& static_ids) {
  const ShadowKvConfig& config = layout.config;
  const CodedPart part(layout);
  std::vector<std::byte> bytes(part.bytes);
  const auto at = [&](size_t offset) { return bytes.data() + offset - part.begin; };
  const size_t coded = layout.coded_begin;
  if (config.quantized_landmarks()) {
    const int64_t count = config.kv_heads * layout.coded.chunks;
    std::ranges::copy(MakeBytes(static_cast<size_t>(count) * config.landmark_bytes(), kSeed + 3),
                      at(coded + layout.coded.landmarks));
    MakeRanges(count, config.landmark_bits, kSeed + 4, at(coded + layout.coded.landmark_scales));
  }
  if (!config.values_apart) {
    std::ranges::copy(values, at(coded + layout.coded.values));
  }
  if (config.quantized_values()) {
    MakeRanges(config.kv_heads * layout.coded.tokens,
               config.value_bits,
               kSeed + 2,
               at(coded + layout.coded.value_scales));
  }
  std::memcpy(at(layout.static_ids), static_ids.data(), static_ids.size() * sizeof(int32_t));
  return bytes;
}

}  // namespace

absl::StatusOr<ShadowKvPool> ShadowKvPool::Make(const DeviceQueue& queue,
                                                const ShadowKvLoad& load) {
  ShadowKvPool made;
  made.load_ = load;
  made.static_ids_ = ChooseStatic(load.layout);
  BATON_RETURN_IF_ERROR(made.Allocate());
  BATON_RETURN_IF_ERROR(made.FillExact(queue));
  BATON_RETURN_IF_ERROR(made.CopyCodes(queue));
  BATON_RETURN_IF_ERROR(queue.Wait());
  return made;
}

ShadowKvSequence ShadowKvPool::sequence(int32_t layer, int32_t row) const {
  const int64_t i = index(layer, row);
  return {
      .layout = layout_,
      .prompt = prompts_ + i * static_cast<int64_t>(load_.layout.bytes),
      .tail = tails_ + i * static_cast<int64_t>(load_.tail_bytes()),
      .max_generated = load_.max_generated,
      .position = load_.position(),
      .row = row,
      .cache = caches_ + i * static_cast<int64_t>(load_.cache_bytes()),
      .value_prompt = prompt_values_.data() + i * static_cast<int64_t>(load_.prompt_value_bytes()),
      .value_tail = tail_values_.data() + i * static_cast<int64_t>(load_.tail_value_bytes()),
      .counters = counters_ + i};
}

const std::byte* ShadowKvPool::prompt(int32_t layer, int32_t row) const {
  return prompts_ + index(layer, row) * static_cast<int64_t>(load_.layout.bytes);
}

const std::byte* ShadowKvPool::tail(int32_t layer, int32_t row) const {
  return tails_ + index(layer, row) * static_cast<int64_t>(load_.tail_bytes());
}

absl::Status ShadowKvPool::Allocate() {
  const auto blocks = [&](size_t bytes) {
    return arena_.Allocate<std::byte>(load_.sequences() * static_cast<int64_t>(bytes));
  };
  prompts_ = blocks(load_.layout.bytes);
  tails_ = blocks(load_.tail_bytes());
  caches_ = blocks(load_.cache_bytes());
  const auto pinned = [&](size_t bytes) {
    return PinnedMemory().Allocate(static_cast<size_t>(load_.sequences()) * bytes);
  };
  BATON_ASSIGN_OR_RETURN(prompt_values_, pinned(load_.prompt_value_bytes()));
  BATON_ASSIGN_OR_RETURN(tail_values_, pinned(load_.tail_value_bytes()));
  counters_ = arena_.Allocate<ShadowKvCounters>(load_.sequences());
  layout_ = arena_.Upload(std::vector<ShadowKvPromptLayout>{load_.layout});
  const int64_t positions = load_.layout.prompt_tokens + load_.max_generated;
  rope_ = ShadowKvAngles(positions, load_.config().head_dim).UploadTo(arena_);
  BATON_RETURN_IF_ERROR(arena_.status());
  std::vector<ShadowKvSequence> sequences;
  sequences.reserve(static_cast<size_t>(load_.sequences()));
  for (int32_t layer = 0; layer < load_.layers; ++layer) {
    for (int32_t row = 0; row < load_.rows; ++row) {
      sequences.push_back(sequence(layer, row));
    }
  }
  sequences_ = arena_.Upload(sequences);
  return arena_.status();
}

absl::Status ShadowKvPool::FillExact(const DeviceQueue& queue) const {
  uint32_t seed = kSeed;
  const auto tail_elements =
      load_.sequences() * static_cast<int64_t>(load_.tail_bytes() / sizeof(uint16_t));
  BATON_RETURN_IF_ERROR(FillBf16(queue, tails_, tail_elements, kScale, seed));
  for (int64_t i = 0; i < load_.sequences(); ++i) {
    std::byte* prompt = prompts_ + i * static_cast<int64_t>(load_.layout.bytes);
    for (const ExactSection& section : ExactSections(load_.layout)) {
      BATON_RETURN_IF_ERROR(FillBf16(queue,
                                     prompt + section.begin,
                                     static_cast<int64_t>(section.bytes / sizeof(uint16_t)),
                                     section.scale,
                                     ++seed));
    }
  }
  return absl::OkStatus();
}

absl::Status ShadowKvPool::CopyCodes(const DeviceQueue& queue) {
  const CodedPart part(load_.layout);
  if (part.bytes == 0) {
    return absl::OkStatus();
  }
  const std::vector<std::byte> values = MakeValues(load_.layout);
  BATON_RETURN_IF_ERROR(CopyToAll(queue,
                                  MakeCodes(load_.layout, values, static_ids_),
                                  prompts_ + part.begin,
                                  load_.layout.bytes));
  return load_.config().values_apart
             ? CopyToAll(queue, values, prompt_values_.data(), load_.prompt_value_bytes())
             : absl::OkStatus();
}

absl::Status ShadowKvPool::CopyToAll(const DeviceQueue& queue,
                                     const std::vector<std::byte>& source,
                                     std::byte* begin,
                                     size_t stride) {
  const std::byte* on_device = arena_.Upload(source);
  BATON_RETURN_IF_ERROR(arena_.status());
  for (int64_t i = 0; i < load_.sequences(); ++i) {
    BATON_RETURN_IF_ERROR(ToStatus(cudaMemcpyAsync(begin + i * static_cast<int64_t>(stride),
                                                   on_device,
                                                   source.size(),
                                                   cudaMemcpyDefault,
                                                   queue.stream()),
                                   "copy codes"));
  }
  return absl::OkStatus();
}

}  // namespace baton::kernels::cuda
