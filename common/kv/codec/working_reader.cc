#include "common/kv/codec/working_reader.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/kv/codec/codec_context.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/step_kv.h"
#include "kernels/core/dtype.h"
#include "kernels/core/memory.h"
#include "kernels/kv_format/dense.h"
#include "kernels/ops/activations.h"
#include "kernels/ops/op_table.h"
#include "kernels/ops/params.h"

namespace baton::kv {
namespace {

// Where the vectors of a page's tokens are among all of its vectors.
std::vector<int32_t> VectorIds(const kernels::DensePageLayout& layout) {
  const size_t vector_bytes =
      static_cast<size_t>(layout.head_dim) * kernels::DTypeBytes(layout.dtype);
  std::vector<int32_t> ids;
  for (int32_t slot = 0; slot < layout.page_tokens; ++slot) {
    for (int32_t head = 0; head < layout.kv_heads; ++head) {
      ids.push_back(static_cast<int32_t>(layout.key_offset(head, slot) / vector_bytes));
    }
    for (int32_t head = 0; head < layout.kv_heads; ++head) {
      ids.push_back(static_cast<int32_t>(layout.value_offset(head, slot) / vector_bytes));
    }
  }
  return ids;
}

}  // namespace

absl::Status WorkingReader::Prepare(const kernels::DensePageLayout& layout) {
  if (rows_.size() > 0) {
    return absl::OkStatus();
  }
  kernels::MemorySpace& space = *context_.exec.memory;
  const std::vector<int32_t> ids = VectorIds(layout);
  const size_t id_bytes = ids.size() * sizeof(int32_t);
  BATON_ASSIGN_OR_RETURN(vector_ids_, space.Allocate(id_bytes));
  BATON_RETURN_IF_ERROR(space.Upload(vector_ids_.data(), ids.data(), id_bytes));
  const int64_t elements = most_tokens_ * 2 * layout.kv_heads * layout.head_dim;
  BATON_ASSIGN_OR_RETURN(rows_,
                         space.Allocate(static_cast<size_t>(elements) *
                                        kernels::DTypeBytes(context_.ops->activations)));
  return absl::OkStatus();
}

absl::StatusOr<KvEntries> WorkingReader::Read(const WorkingKv& working,
                                              int32_t kv_layer,
                                              int64_t first,
                                              int64_t count) const {
  BATON_CHECK(rows_.size() > 0 && count <= most_tokens_);
  const kernels::DensePageLayout& layout = working.pages.layout;
  const kernels::DType activations = context_.ops->activations;
  const int64_t vectors = int64_t{2} * layout.kv_heads;  // of a token
  const int32_t* const table =
      working.host_table.data + static_cast<ptrdiff_t>(kv_layer) * working.host_table.stride;
  const int64_t end = first + count;
  for (int64_t position = first; position < end;) {
    const int64_t slot = position % layout.page_tokens;
    const int64_t tokens = std::min(end - position, layout.page_tokens - slot);
    const auto page = static_cast<size_t>(table[position / layout.page_tokens]);
    BATON_RETURN_IF_ERROR(context_.ops->embed(
        context_.exec,
        {.table = working.pages.base + page * layout.stride_bytes(),
         .dtype = layout.dtype,
         .vocab = vectors * layout.page_tokens,
         .dim = layout.head_dim,
         .token_ids = vector_ids_.as<int32_t>() + slot * vectors,
         .rows = tokens * vectors,
         .out = kernels::Advance(
             rows_.data(), (position - first) * vectors * layout.head_dim, activations)}));
    position += tokens;
  }
  const int64_t stride = vectors * layout.head_dim;
  return KvEntries{.kv_layer = kv_layer,
                   .k = rows_.data(),
                   .v = kernels::Advance(rows_.data(), stride / 2, activations),
                   .stride = stride};
}

}  // namespace baton::kv
