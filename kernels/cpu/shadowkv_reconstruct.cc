#include "kernels/cpu/shadowkv_reconstruct.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/core/dtype.h"
#include "kernels/core/half.h"
#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/shadowkv_coding.h"
#include "kernels/kv_format/quantize.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/kv_format/shadowkv_codec.h"
#include "kernels/ops/shadowkv_view.h"

namespace baton::kernels::cpu {
namespace {

// Tokens whose keys are rebuilt together.
struct Batch {
  int64_t tokens = 0;
  int64_t positions[kShadowKvBlockTokens];
  std::byte* targets[kShadowKvBlockTokens];
};

// Brings the head's columns of the basis into fp32 panels.
void LoadBasis(const ReconstructTask& task) {
  const ShadowKvConfig& config = task.view.config();
  const int64_t columns = task.isa.panel_columns;
  for (int64_t begin = 0; begin < config.head_dim; begin += columns) {
    const int64_t n = std::min(columns, config.head_dim - begin);
    for (int64_t j = 0; j < config.rank; ++j) {
      const auto element =
          static_cast<size_t>(j * config.width() + task.head * config.head_dim + begin);
      float* target = task.scratch.basis + begin * config.rank + j * columns;
      LoadVector(task.isa,
                 task.view.basis() + element * DTypeBytes(config.dtype),
                 config.dtype,
                 n,
                 target);
      std::fill(target + n, target + columns, 0.0f);
    }
  }
}

// Multiplies the batch's coefficients with the basis, rotates the keys and stores them.
void FlushKeys(const ReconstructTask& task, Batch& batch) {
  const ShadowKvConfig& config = task.view.config();
  const int64_t dim = config.head_dim;
  const int64_t half = dim / 2;
  const float* bias = task.key_bias == nullptr ? nullptr : task.key_bias + task.head * dim;
  for (int64_t depth = 0; depth < config.rank; depth += kDepthBlock) {
    task.isa.panel_f32({.x = task.scratch.coefficients + depth,
                        .x_stride = config.rank,
                        .rows = batch.tokens,
                        .depth = std::min<int64_t>(kDepthBlock, config.rank - depth),
                        .panel = task.scratch.basis + depth * task.isa.panel_columns,
                        .panel_stride = config.rank * task.isa.panel_columns,
                        .columns = dim,
                        .bias = depth == 0 ? bias : nullptr,
                        .accumulate = depth > 0,
                        .out = task.scratch.keys,
                        .out_stride = dim});
  }
  for (int64_t t = 0; t < batch.tokens; ++t) {
    float* key = task.scratch.keys + t * dim;
    const int64_t angle = batch.positions[t] * half;
    task.isa.rope(key, task.rope.cosines + angle, task.rope.sines + angle, half);
    StoreVector(task.isa, key, config.dtype, dim, batch.targets[t]);
  }
  batch.tokens = 0;
}

// Widens a token's coefficients; scratch.scales holds those of its group.
void LoadCoefficients(const ReconstructTask& task,
                      const ShadowKvCodedView& section,
                      int64_t token,
                      float* out) {
  const ShadowKvConfig& config = task.view.config();
  if (!config.int8_coefficients) {
    LoadVector(task.isa, section.Coefficients(token), config.dtype, config.rank, out);
    return;
  }
  const int8_t* codes = section.CoefficientCodes(token);
  for (int64_t j = 0; j < config.rank; ++j) {
    out[j] = static_cast<float>(codes[j]) * task.scratch.scales[j];
  }
}

// Dequantizes one value: a table of its 4- or 2-bit codes, then one look-up per element.
void StoreValue(const ReconstructTask& task,
                const ShadowKvCodedView& section,
                int64_t token,
                std::byte* target) {
  const ShadowKvConfig& config = task.view.config();
  const auto* codes = reinterpret_cast<const uint8_t*>(section.Value(task.head, token));
  const uint16_t* pair = section.ValueScale(task.head, token);
  const float scale = F16ToF32(pair[0]);
  const float zero = F16ToF32(pair[1]);
  float* value = task.scratch.value;
  if (config.value_bits == 8) {
    for (int64_t i = 0; i < config.head_dim; ++i) {
      value[i] = scale * static_cast<float>(codes[i]) + zero;
    }
  } else {
    const int32_t bits = config.value_bits;
    const int64_t per_byte = 8 / bits;
    const auto mask = static_cast<uint32_t>(QuantLevels(bits));
    float table[16];
    for (int32_t code = 0; code <= QuantLevels(bits); ++code) {
      table[code] = scale * static_cast<float>(code) + zero;
    }
    for (int64_t byte = 0; byte < config.head_dim / per_byte; ++byte) {
      uint32_t packed = codes[byte];
      for (int64_t e = 0; e < per_byte; ++e, packed >>= bits) {
        value[byte * per_byte + e] = table[packed & mask];
      }
    }
  }
  StoreVector(task.isa, value, config.dtype, config.head_dim, target);
}

// Adds one chunk's tokens to the batch, and stores its values.
void AddChunk(const ReconstructTask& task, int32_t id, int64_t slot, Batch& batch) {
  const ShadowKvConfig& config = task.view.config();
  const ShadowKvChunk chunk = task.view.Chunk(id);
  const int64_t first = chunk.chunk * config.chunk_tokens;
  if (config.int8_coefficients) {
    const uint16_t* scales = chunk.section.CoefficientScales(first);
    std::transform(scales, scales + config.rank, task.scratch.scales, F16ToF32);
  }
  for (int64_t t = 0; t < config.chunk_tokens; ++t) {
    const size_t offset =
        static_cast<size_t>(slot * config.chunk_tokens + t) * config.vector_bytes();
    LoadCoefficients(
        task, chunk.section, first + t, task.scratch.coefficients + batch.tokens * config.rank);
    batch.positions[batch.tokens] = int64_t{id} * config.chunk_tokens + t;
    batch.targets[batch.tokens] = task.keys + offset;
    ++batch.tokens;
    if (config.quantized_values()) {
      StoreValue(task, chunk.section, first + t, task.values + offset);
    }
  }
}

}  // namespace

void ReconstructMisses(const ReconstructTask& task) {
  Batch batch;
  bool loaded = false;
  for (int64_t i = 0; i < task.selected; ++i) {
    if (task.plan[i] >= 0) {
      continue;
    }
    if (!loaded) {
      LoadBasis(task);
      loaded = true;
    }
    AddChunk(task, task.ids[i], ~task.plan[i], batch);
    if (batch.tokens == kShadowKvBlockTokens) {
      FlushKeys(task, batch);
    }
  }
  if (batch.tokens > 0) {
    FlushKeys(task, batch);
  }
}

}  // namespace baton::kernels::cpu
