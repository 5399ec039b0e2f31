#include "kernels/cpu/workspace.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace baton::kernels::cpu {
namespace {

// Hands out consecutive 64-byte aligned arrays; with a null base it only counts.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}

  template <typename T>
  T* Take(int64_t count) {
    std::byte* start = base_ == nullptr ? nullptr : base_ + used_;
    used_ += (static_cast<size_t>(count) * sizeof(T) + 63) / 64 * 64;
    return reinterpret_cast<T*>(start);
  }
  size_t used() const { return used_; }

 private:
  std::byte* base_;
  size_t used_ = 0;
};

AttentionScratch Carve(const IsaKernels& isa, int64_t head_dim, Carver& carver) {
  const int64_t columns = isa.panel_columns;
  AttentionScratch scratch;
  AttentionTile& tile = scratch.tile;
  tile.head_dim = head_dim;
  tile.width = (head_dim + columns - 1) / columns * columns;
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

}  // namespace

size_t AttentionScratchBytes(const IsaKernels& isa, int64_t head_dim) {
  Carver counter(nullptr);
  Carve(isa, head_dim, counter);
  return counter.used();
}

size_t MatmulScratchBytes(const IsaKernels& isa) {
  return static_cast<size_t>(kDepthBlock * isa.panel_columns) * sizeof(float);
}

size_t WorkspaceBytes(const IsaKernels& isa, int threads, int64_t max_head_dim) {
  const size_t slice = std::max(MatmulScratchBytes(isa),
                                AttentionScratchBytes(isa, std::max<int64_t>(max_head_dim, 0)));
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
