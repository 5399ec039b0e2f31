#include "kernels/cpu/workspace.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

#include "kernels/core/carver.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/round_up.h"
#include "kernels/cpu/isa_kernels.h"

namespace baton::kernels::cpu {
namespace {

AttentionScratch Carve(const IsaKernels& isa, int64_t head_dim, Carver& carver) {
  const int64_t columns = isa.panel_columns;
  AttentionScratch scratch;
  AttentionTile& tile = scratch.tile;
  tile.head_dim = head_dim;
  tile.width = RoundUp(head_dim, columns);
  tile.q = carver.Take<float>(kMaxTileLines * tile.width);
  tile.sum_values = carver.Take<float>(kMaxTileLines * tile.width);
  tile.row_sum = carver.Take<float>(kMaxTileLines * columns / 2);
  tile.row_max = carver.Take<float>(kMaxTileLines);
  tile.scores = carver.Take<float>(int64_t{isa.tile_rows} * kKvBlockTokens);
  tile.keys = carver.Take<float>(tile.width * kKvBlockTokens);
  tile.values = carver.Take<float>(tile.width * kKvBlockTokens);
  scratch.first_key = carver.Take<int32_t>(kMaxTileLines);
  scratch.last_key = carver.Take<int32_t>(kMaxTileLines);
  tile.first_key = scratch.first_key;
  tile.last_key = scratch.last_key;
  return scratch;
}

// Tokens of the largest page of format `diffkv`.
constexpr int64_t kMaxPageTokens = 64;

QuantScratch CarveQuantInto(const IsaKernels& isa, int64_t head_dim, Carver& carver) {
  const int64_t most = isa.quant_heads;
  QuantScratch scratch;
  scratch.heads.head_dim = static_cast<int32_t>(head_dim);
  scratch.heads.sums = carver.Take<float>(16 * most);
  scratch.heads.zero_sums = carver.Take<float>(16 * most);
  scratch.heads.weights = carver.Take<float>(4 * kMaxPageTokens * most);
  scratch.heads.values = carver.Take<float>(4 * head_dim * most);
  scratch.heads.max = carver.Take<float>(most);
  for (float*& q : scratch.q) {
    q = carver.Take<float>(head_dim * most);
  }
  scratch.q_sums = carver.Take<float>(most);
  scratch.factors = carver.Take<float>(most);
  scratch.heads.q_sums = scratch.q_sums;
  return scratch;
}

}  // namespace

size_t QuantScratchBytes(const IsaKernels& isa, int64_t head_dim) {
  Carver counter(nullptr);
  CarveQuantInto(isa, head_dim, counter);
  return counter.used();
}

QuantScratch CarveQuant(const IsaKernels& isa, int32_t head_dim, std::byte* slice) {
  Carver carver(slice);
  return CarveQuantInto(isa, head_dim, carver);
}

size_t AttentionScratchBytes(const IsaKernels& isa, int64_t head_dim) {
  Carver counter(nullptr);
  Carve(isa, head_dim, counter);
  return counter.used();
}

size_t MatmulScratchBytes(const IsaKernels& isa) {
  return static_cast<size_t>(kDepthBlock * isa.panel_columns) * sizeof(float);
}

size_t WorkspaceBytes(const IsaKernels& isa, int threads, int64_t max_head_dim) {
  const int64_t head_dim = std::max<int64_t>(max_head_dim, 0);
  const size_t slice = std::max({MatmulScratchBytes(isa),
                                 AttentionScratchBytes(isa, head_dim),
                                 QuantScratchBytes(isa, head_dim)});
  return static_cast<size_t>(std::max(threads, 1)) * slice;
}

absl::Status CheckWorkspace(absl::string_view op, const ExecContext& context, size_t slice_bytes) {
  const size_t needed = static_cast<size_t>(context.pool->threads()) * slice_bytes;
  const size_t held = context.workspace == nullptr ? 0 : context.workspace->size();
  if (held < needed) {
    return absl::InvalidArgumentError(
        absl::StrCat(op,
                     ": the workspace holds ",
                     held,
                     " bytes but ",
                     needed,
                     " are needed; size it with OpTable::workspace_bytes"));
  }
  return absl::OkStatus();
}

AttentionScratch CarveAttention(const IsaKernels& isa, int64_t head_dim, std::byte* slice) {
  Carver carver(slice);
  return Carve(isa, head_dim, carver);
}

}  // namespace baton::kernels::cpu
