#include "kernels/cpu/shadowkv_factor.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/core/carver.h"
#include "kernels/core/dtype.h"
#include "kernels/cpu/dominant_subspace.h"
#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/shadowkv_coding.h"
#include "kernels/kv_format/dense.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/shadowkv_host.h"

namespace baton::kernels::cpu {
namespace {

// Tokens of a Gram tile that one index un-rotates.
constexpr int64_t kTokensPerIndex = 16;
// Most columns of a panel.
constexpr int64_t kMaxPanelColumns = 32;

int64_t Panels(const IsaKernels& isa, int64_t columns) {
  return (columns + isa.panel_columns - 1) / isa.panel_columns;
}

// One factorization with what all its steps share.
struct Factor {
  const PromptTask& task;
  std::span<const FactorLayer> layers;
  FactorScratch scratch;

  int64_t width() const { return static_cast<int64_t>(layers.size()) * task.config.width(); }
  int64_t panels() const { return Panels(task.isa, width()); }
};

// Puts a token's columns [begin, begin + count) into the panels.
void FillColumns(
    const Factor& factor, int64_t t, int64_t begin, int64_t count, const float* source) {
  const int64_t columns = factor.task.isa.panel_columns;
  for (int64_t column = begin; column < begin + count;) {
    const int64_t panel = column / columns;
    const int64_t end = std::min(begin + count, (panel + 1) * columns);
    std::copy(
        source + column - begin,
        source + end - begin,
        factor.scratch.panels + panel * columns * kGramTileTokens + t * columns + column % columns);
    column = end;
  }
}

// Un-rotates tokens [first, first + count) into the panels.
void FillPanels(const Factor& factor, int64_t first, int64_t count) {
  const PromptTask& task = factor.task;
  const int64_t width = task.config.width();
  const int64_t indices = (count + kTokensPerIndex - 1) / kTokensPerIndex;
  ParallelFor(task.context, indices, false, [&](int64_t index, int thread) {
    const CodingScratch coding = task.Coding(thread);
    const int64_t end = std::min(count, (index + 1) * kTokensPerIndex);
    for (int64_t t = index * kTokensPerIndex; t < end; ++t) {
      for (size_t layer = 0; layer < factor.layers.size(); ++layer) {
        const FactorLayer& from = factor.layers[layer];
        LoadPromptToken(task, from.page_table, first + t, false, coding.keys);
        Unrotate(task.isa,
                 task.config,
                 task.rope,
                 from.key_bias,
                 first + t,
                 coding.keys,
                 coding.negated_sines,
                 coding.factored);
        FillColumns(factor, t, static_cast<int64_t>(layer) * width, width, coding.factored);
      }
    }
  });
}

// Adds the tile's part of the Gram matrix: the blocks on and right of the diagonal.
void AddTile(const Factor& factor, int64_t count) {
  const IsaKernels& isa = factor.task.isa;
  const int64_t columns = isa.panel_columns;
  const int64_t width = factor.width();
  const int64_t stride = GramStride(width);
  ParallelFor(factor.task.context, factor.panels(), false, [&](int64_t row_panel, int) {
    alignas(64) float block[kMaxPanelColumns * kMaxPanelColumns];
    const int64_t row_begin = row_panel * columns;
    const int64_t rows = std::min(columns, width - row_begin);
    for (int64_t panel = row_panel; panel < factor.panels(); ++panel) {
      const int64_t begin = panel * columns;
      const int64_t n = std::min(columns, width - begin);
      isa.gram_panel(factor.scratch.panels + row_begin * kGramTileTokens,
                     factor.scratch.panels + begin * kGramTileTokens,
                     count,
                     block);
      for (int64_t r = 0; r < rows; ++r) {
        double* gram = factor.scratch.subspace.gram + (row_begin + r) * stride + begin;
        for (int64_t c = 0; c < n; ++c) {
          gram[c] += double{block[r * columns + c]};
        }
      }
    }
  });
}

// gram = sum over tokens of k k^T, k the un-rotated keys of all heads and layers: fp32 within a
// tile, fp64 from tile to tile, in the order of tokens.
void ComputeGram(const Factor& factor, int64_t tokens) {
  const int64_t width = factor.width();
  const int64_t stride = GramStride(width);
  const int64_t padded = factor.panels() * factor.task.isa.panel_columns;
  double* gram = factor.scratch.subspace.gram;
  std::fill(gram, gram + width * stride, 0.0);
  std::fill(factor.scratch.panels, factor.scratch.panels + padded * kGramTileTokens, 0.0f);
  for (int64_t first = 0; first < tokens; first += kGramTileTokens) {
    const int64_t count = std::min(kGramTileTokens, tokens - first);
    FillPanels(factor, first, count);
    AddTile(factor, count);
  }
  for (int64_t i = 0; i < width; ++i) {
    for (int64_t j = 0; j < i; ++j) {
      gram[i * stride + j] = gram[j * stride + i];
    }
  }
}

// Stores the dominant eigenvectors, each with its largest element positive.
void WriteBasis(const Factor& factor) {
  const ShadowKvConfig& config = factor.task.config;
  const int64_t width = config.width();
  const CodingScratch coding = factor.task.Coding(0);
  for (int64_t j = 0; j < config.rank; ++j) {
    const double* vector = factor.scratch.subspace.vectors + j * factor.width();
    const double largest =
        *std::max_element(vector, vector + factor.width(), [](double a, double b) {
          return std::fabs(a) < std::fabs(b);
        });
    const double sign = largest < 0.0 ? -1.0 : 1.0;
    for (const FactorLayer& layer : factor.layers) {
      std::transform(vector, vector + width, coding.factored, [&](double x) {
        return static_cast<float>(sign * x);
      });
      StoreVector(factor.task.isa,
                  coding.factored,
                  config.dtype,
                  width,
                  layer.basis + static_cast<size_t>(j * width) * DTypeBytes(config.dtype));
      vector += width;
    }
  }
}

}  // namespace

void LoadPromptToken(
    const PromptTask& task, const int32_t* page_table, int64_t position, bool value, float* out) {
  const DensePageLayout& layout = task.pages.layout;
  const PageSlot at = LocatePromptToken(task.pages, page_table, position);
  for (int32_t head = 0; head < layout.kv_heads; ++head) {
    const size_t offset =
        value ? layout.value_offset(head, at.slot) : layout.key_offset(head, at.slot);
    LoadVector(task.isa,
               at.page + offset,
               layout.dtype,
               layout.head_dim,
               out + int64_t{head} * layout.head_dim);
  }
}

FactorScratch CarveFactor(const IsaKernels& isa,
                          const ShadowKvConfig& config,
                          int64_t layers,
                          Carver& carver) {
  const int64_t width = layers * config.width();
  FactorScratch scratch;
  scratch.subspace = CarveSubspace(width, config.rank, carver);
  scratch.panels = carver.Take<float>(Panels(isa, width) * isa.panel_columns * kGramTileTokens);
  return scratch;
}

void FactorKeys(const PromptTask& task,
                std::span<const FactorLayer> layers,
                int64_t tokens,
                const FactorScratch& scratch) {
  const Factor factor = {.task = task, .layers = layers, .scratch = scratch};
  ComputeGram(factor, tokens);
  DominantSubspace(task.isa, task.context, scratch.subspace);
  WriteBasis(factor);
}

}  // namespace baton::kernels::cpu
