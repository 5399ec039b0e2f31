#include "kernels/reference/shadowkv_factor.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>

#include "kernels/core/carver.h"
#include "kernels/kv_format/dense.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/params.h"
#include "kernels/ops/shadowkv_host.h"
#include "kernels/reference/jacobi.h"
#include "kernels/reference/reference_kernels.h"
#include "kernels/reference/shadowkv_coding.h"

namespace baton::kernels::reference {
namespace {

// gram = sum over tokens of k k^T, k the un-rotated keys of all heads and layers.
void ComputeGram(const PromptKeys& keys,
                 std::span<const FactorLayer> layers,
                 const CodingScratch& coding,
                 const FactorScratch& scratch) {
  const int64_t width = keys.config.width();
  const int64_t columns = static_cast<int64_t>(layers.size()) * width;
  std::fill(scratch.gram, scratch.gram + columns * columns, 0.0);
  for (int64_t token = 0; token < keys.tokens; ++token) {
    float* k = scratch.row;
    for (const FactorLayer& layer : layers) {
      LoadPromptTokens(keys.pages, layer.page_table, token, 1, false, coding.keys);
      Unrotate(keys.config, keys.rope, layer.key_bias, token, coding.keys, k);
      k += width;
    }
    for (int64_t i = 0; i < columns; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        scratch.gram[i * columns + j] += double{scratch.row[i]} * double{scratch.row[j]};
      }
    }
  }
}

}  // namespace

FactorScratch CarveFactor(const ShadowKvConfig& config, int64_t layers, Carver& carver) {
  const int64_t columns = layers * config.width();
  FactorScratch scratch;
  scratch.gram = carver.Take<double>(columns * columns);
  scratch.vectors = carver.Take<double>(columns * columns);
  scratch.order = carver.Take<int32_t>(columns);
  scratch.row = carver.Take<float>(columns);
  return scratch;
}

void LoadPromptTokens(const DensePages& pages,
                      const int32_t* page_table,
                      int64_t first,
                      int64_t count,
                      bool value,
                      float* out) {
  const DensePageLayout& layout = pages.layout;
  for (int64_t t = 0; t < count; ++t) {
    const PageSlot at = LocatePromptToken(pages, page_table, first + t);
    for (int32_t head = 0; head < layout.kv_heads; ++head) {
      const size_t offset =
          value ? layout.value_offset(head, at.slot) : layout.key_offset(head, at.slot);
      for (int32_t i = 0; i < layout.head_dim; ++i) {
        *out++ = LoadElement(at.page + offset, layout.dtype, static_cast<size_t>(i));
      }
    }
  }
}

void FactorKeys(const PromptKeys& keys,
                std::span<const FactorLayer> layers,
                const CodingScratch& coding,
                const FactorScratch& scratch) {
  const int64_t width = keys.config.width();
  const int64_t columns = static_cast<int64_t>(layers.size()) * width;
  ComputeGram(keys, layers, coding, scratch);
  JacobiEigen(columns, scratch.gram, scratch.vectors);
  std::iota(scratch.order, scratch.order + columns, 0);
  std::sort(scratch.order, scratch.order + columns, [&](int32_t a, int32_t b) {
    const double first = scratch.gram[a * columns + a];
    const double second = scratch.gram[b * columns + b];
    return first != second ? first > second : a < b;
  });
  for (int64_t j = 0; j < keys.config.rank; ++j) {
    const double* vector = scratch.vectors + scratch.order[j] * columns;
    const double largest = *std::max_element(
        vector, vector + columns, [](double a, double b) { return std::fabs(a) < std::fabs(b); });
    const double sign = largest < 0.0 ? -1.0 : 1.0;
    for (int64_t i = 0; i < columns; ++i) {
      StoreElement(layers[static_cast<size_t>(i / width)].basis,
                   keys.config.dtype,
                   j * width + i % width,
                   static_cast<float>(sign * vector[i]));
    }
  }
}

}  // namespace baton::kernels::reference
