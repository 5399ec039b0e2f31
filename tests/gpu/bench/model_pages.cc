#include "tests/gpu/bench/model_pages.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "kernels/core/memory.h"
#include "kernels/kv_format/dense.h"

namespace baton::model {
namespace {

constexpr uint32_t kSeed = 20240526;

}  // namespace

absl::StatusOr<ModelPages> ModelPages::Create(const kernels::DensePageLayout& layout,
                                              int32_t layers,
                                              int64_t tokens,
                                              kernels::MemorySpace& space) {
  std::vector<int32_t> ids(static_cast<size_t>(layers) *
                           static_cast<size_t>(layout.pages_for(tokens)));
  std::iota(ids.begin(), ids.end(), 0);
  BATON_ASSIGN_OR_RETURN(kernels::Memory memory,
                         space.Allocate(ids.size() * layout.stride_bytes()));
  return ModelPages(layout, layers, std::move(memory), std::move(ids));
}

ModelPages::ModelPages(const kernels::DensePageLayout& layout,
                       int32_t layers,
                       kernels::Memory memory,
                       std::vector<int32_t> ids)
    : layout_(layout),
      layers_(layers),
      memory_(std::move(memory)),
      ids_(std::move(ids)),
      random_(kSeed) {}

absl::StatusOr<std::vector<int32_t>> ModelPages::DrawTables(int32_t sequences, int64_t tokens) {
  const size_t count = static_cast<size_t>(sequences) * static_cast<size_t>(layers_) *
                       static_cast<size_t>(layout_.pages_for(tokens));
  if (count > ids_.size()) {
    return absl::ResourceExhaustedError(
        absl::StrCat(count, " pages are wanted of a pool of ", ids_.size()));
  }
  std::shuffle(ids_.begin(), ids_.end(), random_);
  return std::vector<int32_t>(ids_.begin(), ids_.begin() + static_cast<ptrdiff_t>(count));
}

}  // namespace baton::model
