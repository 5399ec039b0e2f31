// The innermost loops of the CPU back end, one set per instruction set. They see raw pointers only
// and are the only code compiled with vector flags (isa_*.cc), so nothing else can pick up an
// instruction that the machine lacks. Everything above them (checks, threads, paging) is compiled
// once.
#pragma once

#include <cstddef>
#include <cstdint>

namespace baton::kernels::cpu {

// Weights are packed in panels of `IsaKernels::panel_columns` output features, and the sum over
// input features is split every kDepthBlock: inside a block one fused multiply-add after the other,
// then block results are added in order. This order is the same for every number of rows.
inline constexpr int64_t kDepthBlock = 256;

// Tokens of a KV block: attention's softmax is renormalised once per block, and blocks start at
// multiples of this position, so that a row's result does not depend on where its step began.
inline constexpr int kKvBlockTokens = 64;

// out[rows][columns] (+)= x[rows][depth] * panel, for one depth block of one panel.
struct PanelTask {
  const float* x = nullptr;  // [rows][depth]
  int64_t x_stride = 0;
  int64_t rows = 0;
  int64_t depth = 0;            // at most kDepthBlock
  const void* panel = nullptr;  // [depth][panel_columns], fp32 or bf16 pairs (see matmul.h)
  int64_t panel_stride = 0;     // elements from one panel to the next
  int64_t columns = 0;          // may span several panels
  const float* bias = nullptr;  // [columns] or null
  bool accumulate = false;      // add what `out` holds
  float* out = nullptr;         // [rows][columns]
  int64_t out_stride = 0;
};

// Running softmax of a tile of attention lines; a line is one (row, query head) pair. All arrays
// are scratch of the calling thread. `width` is head_dim rounded up to panel_columns.
struct AttentionTile {
  int64_t lines = 0;
  int64_t head_dim = 0;
  int64_t width = 0;
  const int32_t* first_key = nullptr;  // [lines] first key that the line may see
  const int32_t* last_key = nullptr;   // [lines] last key: the line's own position
  float* q = nullptr;                  // [lines][width], times scale * log2(e); zero past head_dim
  float* row_max = nullptr;            // [lines]
  float* row_sum = nullptr;            // [lines][panel_columns / 2], partial sums by lane
  float* sum_values = nullptr;         // [lines][width], weighted values
  float* scores = nullptr;             // [tile rows][kKvBlockTokens]
  float* keys = nullptr;               // [head_dim][kKvBlockTokens], transposed and widened
  float* values = nullptr;             // [kKvBlockTokens][width], widened
};

// One KV block of one head as it lies in its pages: the address of each token's head_dim elements.
struct KvBlock {
  const std::byte* keys[kKvBlockTokens] = {};
  const std::byte* values[kKvBlockTokens] = {};
  int tokens = 0;        // tokens present; the others are zero-filled
  int32_t position = 0;  // of token 0
  bool bf16 = true;      // element type, else fp32
};

struct IsaKernels {
  const char* name;
  int panel_columns;  // two vectors
  int tile_rows;      // rows of the largest register tile

  // PanelTask over a bf16 panel, widening in the load: few rows.
  void (*panel_bf16)(const PanelTask&);
  // PanelTask over an fp32 panel.
  void (*panel_f32)(const PanelTask&);
  // Widens `depth` rows of one bf16 panel into fp32: many rows, then panel_f32.
  void (*widen_panel)(const uint16_t* panel, int64_t depth, float* out);

  void (*rms_norm)(const float* x, const float* weight, float epsilon, int64_t dim, float* out);
  void (*silu_mul)(const float* gate, const float* up, int64_t dim, float* out);
  // Rotates one head in place.
  void (*rope)(float* x, const float* cosines, const float* sines, int64_t half_dim);
  void (*widen)(const uint16_t* x, int64_t n, float* out);
  void (*narrow)(const float* x, int64_t n, uint16_t* out);

  // Copies one line's query into the tile, scaled, and resets its running softmax.
  void (*attention_begin)(const AttentionTile&, int64_t line, const float* q, float scale);
  // Brings one KV block into the tile's keys and values.
  void (*attention_load)(const AttentionTile&, const KvBlock&);
  // Folds the loaded block into every line that sees one of its tokens.
  void (*attention_fold)(const AttentionTile&, const KvBlock&);
  // Writes one line's attention output, [head_dim].
  void (*attention_finish)(const AttentionTile&, int64_t line, float* out);
};

extern const IsaKernels kPortableKernels;
#if defined(__x86_64__)
extern const IsaKernels kAvx2Kernels;
extern const IsaKernels kAvx512Kernels;
#endif

}  // namespace baton::kernels::cpu
