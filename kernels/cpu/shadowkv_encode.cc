#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/status/status.h"

#include "kernels/core/carver.h"
#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/dominant_subspace.h"
#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/shadowkv_coding.h"
#include "kernels/cpu/shadowkv_workspace.h"
#include "kernels/kv_format/dense.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/shadowkv_clusters.h"
#include "kernels/ops/shadowkv_host.h"
#include "kernels/ops/shadowkv_params.h"
#include "kernels/ops/validate.h"

namespace baton::kernels::cpu {
namespace {

// Tokens of a Gram tile that one index un-rotates.
constexpr int64_t kTokensPerIndex = 16;
// Most columns of a panel.
constexpr int64_t kMaxPanelColumns = 32;

// One call of the op with what all tasks share.
struct Call {
  const IsaKernels& isa;
  const ExecContext& context;
  const ShadowKvEncodeParams& params;
  EncodeScratch scratch;
  std::byte* slices;  // of the threads
  size_t slice_bytes;

  const ShadowKvPromptLayout& layout() const { return params.layout; }
  const ShadowKvConfig& config() const { return params.layout.config; }
  CodingScratch Coding(int thread) const {
    Carver carver(slices + static_cast<size_t>(thread) * slice_bytes);
    return CarveCoding(config(), carver);
  }
  int64_t panels() const { return (config().width() + isa.panel_columns - 1) / isa.panel_columns; }
};

// Widens one token's keys (or values) of every head, [width].
void LoadToken(const Call& call, int64_t position, bool value, float* out) {
  const DensePageLayout& layout = call.params.pages.layout;
  const PageSlot at = LocatePromptToken(call.params, position);
  for (int32_t head = 0; head < layout.kv_heads; ++head) {
    const size_t offset =
        value ? layout.value_offset(head, at.slot) : layout.key_offset(head, at.slot);
    LoadVector(call.isa,
               at.page + offset,
               layout.dtype,
               layout.head_dim,
               out + int64_t{head} * layout.head_dim);
  }
}

// Un-rotates tokens [first, first + count) into the panels.
void FillPanels(const Call& call, int64_t first, int64_t count) {
  const int64_t columns = call.isa.panel_columns;
  const int64_t width = call.config().width();
  const int64_t indices = (count + kTokensPerIndex - 1) / kTokensPerIndex;
  ParallelFor(call.context, indices, false, [&](int64_t index, int thread) {
    const CodingScratch coding = call.Coding(thread);
    const int64_t end = std::min(count, (index + 1) * kTokensPerIndex);
    for (int64_t t = index * kTokensPerIndex; t < end; ++t) {
      LoadToken(call, first + t, false, coding.keys);
      Unrotate(call.isa,
               call.config(),
               call.params.rope,
               call.params.key_bias,
               first + t,
               coding.keys,
               coding.negated_sines,
               coding.factored);
      for (int64_t panel = 0; panel < call.panels(); ++panel) {
        const int64_t column = panel * columns;
        float* target = call.scratch.panels + column * kGramTileTokens + t * columns;
        const float* source = coding.factored + column;
        float* rest = std::copy(source, source + std::min(columns, width - column), target);
        std::fill(rest, target + columns, 0.0f);
      }
    }
  });
}

// Adds the tile's part of the Gram matrix: the blocks on and right of the diagonal.
void AddTile(const Call& call, int64_t count) {
  const int64_t columns = call.isa.panel_columns;
  const int64_t width = call.config().width();
  const int64_t stride = GramStride(width);
  ParallelFor(call.context, call.panels(), false, [&](int64_t row_panel, int) {
    alignas(64) float block[kMaxPanelColumns * kMaxPanelColumns];
    const int64_t row_begin = row_panel * columns;
    const int64_t rows = std::min(columns, width - row_begin);
    for (int64_t panel = row_panel; panel < call.panels(); ++panel) {
      const int64_t begin = panel * columns;
      const int64_t n = std::min(columns, width - begin);
      call.isa.gram_panel(call.scratch.panels + row_begin * kGramTileTokens,
                          call.scratch.panels + begin * kGramTileTokens,
                          count,
                          block);
      for (int64_t r = 0; r < rows; ++r) {
        double* gram = call.scratch.subspace.gram + (row_begin + r) * stride + begin;
        for (int64_t c = 0; c < n; ++c) {
          gram[c] += double{block[r * columns + c]};
        }
      }
    }
  });
}

// gram = sum over tokens of k k^T, k the un-rotated keys of all heads: fp32 within a tile, fp64
// from tile to tile, in the order of tokens.
void ComputeGram(const Call& call) {
  const int64_t width = call.config().width();
  const int64_t stride = GramStride(width);
  double* gram = call.scratch.subspace.gram;
  std::fill(gram, gram + width * stride, 0.0);
  const int64_t tokens = call.layout().prompt_tokens;
  for (int64_t first = 0; first < tokens; first += kGramTileTokens) {
    const int64_t count = std::min(kGramTileTokens, tokens - first);
    FillPanels(call, first, count);
    AddTile(call, count);
  }
  for (int64_t i = 0; i < width; ++i) {
    for (int64_t j = 0; j < i; ++j) {
      gram[i * stride + j] = gram[j * stride + i];
    }
  }
}

// Stores the dominant eigenvectors, each with its largest element positive.
void WriteBasis(const Call& call) {
  const ShadowKvConfig& config = call.config();
  const int64_t width = config.width();
  const CodingScratch coding = call.Coding(0);
  for (int64_t j = 0; j < config.rank; ++j) {
    const double* vector = call.scratch.subspace.vectors + j * width;
    const double largest = *std::max_element(
        vector, vector + width, [](double a, double b) { return std::fabs(a) < std::fabs(b); });
    const double sign = largest < 0.0 ? -1.0 : 1.0;
    std::transform(vector, vector + width, coding.factored, [&](double x) {
      return static_cast<float>(sign * x);
    });
    StoreVector(call.isa,
                coding.factored,
                config.dtype,
                width,
                call.params.prompt + call.layout().basis +
                    static_cast<size_t>(j * width) * DTypeBytes(config.dtype));
  }
}

void CodeTokens(const Call& call) {
  const ShadowKvPromptLayout& layout = call.layout();
  const int64_t width = layout.config.width();
  const int64_t groups = (layout.coded.tokens + kShadowKvBlockTokens - 1) / kShadowKvBlockTokens;
  ParallelFor(call.context, groups, false, [&](int64_t index, int thread) {
    const CodingScratch coding = call.Coding(thread);
    const int64_t first = index * kShadowKvBlockTokens;
    const int64_t count = std::min(kShadowKvBlockTokens, layout.coded.tokens - first);
    for (int64_t t = 0; t < count; ++t) {
      LoadToken(call, first + t, false, coding.keys + t * width);
      LoadToken(call, first + t, true, coding.values + t * width);
    }
    CodeGroup(call.isa,
              {.config = layout.config,
               .layout = layout.coded,
               .section = call.params.prompt + layout.coded_begin,
               .basis = call.params.prompt + layout.basis,
               .rope = call.params.rope,
               .key_bias = call.params.key_bias,
               .position = first,
               .token = first,
               .tokens = count},
              coding,
              call.scratch.chunk_scores);
  });
}

}  // namespace

absl::Status ShadowKvEncode(const IsaKernels& isa,
                            const ExecContext& context,
                            const ShadowKvEncodeParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  Carver shared(nullptr);
  CarveEncode(isa, params.layout, shared);
  Carver coding(nullptr);
  CarveCoding(params.layout.config, coding);
  const size_t needed =
      shared.used() + static_cast<size_t>(context.pool->threads()) * coding.used();
  if (absl::Status status = CheckShadowKvWorkspace("shadowkv_encode", context, needed);
      !status.ok()) {
    return status;
  }
  Carver carver(context.workspace->data());
  const Call call = {.isa = isa,
                     .context = context,
                     .params = params,
                     .scratch = CarveEncode(isa, params.layout, carver),
                     .slices = context.workspace->data() + shared.used(),
                     .slice_bytes = coding.used()};
  std::memset(params.prompt, 0, params.layout.bytes);
  ComputeGram(call);
  DominantSubspace(isa, context, call.scratch.subspace);
  WriteBasis(call);
  CodeTokens(call);
  for (int32_t head = 0; head < params.layout.config.kv_heads; ++head) {
    const int64_t first = head * params.layout.coded.chunks;
    WriteShadowKvExact(params, head, call.scratch.chunk_scores + first, call.scratch.order + first);
    WriteShadowKvClusters(params, head, call.scratch.clusters);
  }
  return absl::OkStatus();
}

}  // namespace baton::kernels::cpu
