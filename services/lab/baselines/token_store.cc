#include "services/lab/baselines/token_store.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/kv_format.h"
#include "common/kv/codec/step_kv.h"
#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/half.h"
#include "kernels/ops/op_table.h"
#include "kernels/ops/params.h"

namespace baton::lab {
namespace {

void ReadVector(const std::byte* source, kernels::DType dtype, size_t count, float* target) {
  if (dtype == kernels::DType::kF32) {
    std::memcpy(target, source, count * sizeof(float));
    return;
  }
  const auto* bits = reinterpret_cast<const uint16_t*>(source);
  for (size_t i = 0; i < count; ++i) {
    target[i] = kernels::BF16ToF32(bits[i]);
  }
}

}  // namespace

TokenStore::TokenStore(const kv::KvDimensions& dimensions, int64_t capacity)
    : layout_{.page_tokens = 1,
              .kv_heads = 1,
              .head_dim = dimensions.head_dim,
              .dtype = kernels::DType::kF32},
      kv_heads_(dimensions.kv_heads),
      capacity_(static_cast<int32_t>(capacity)),
      memory_(static_cast<size_t>(kv_heads_) * static_cast<size_t>(capacity) *
              layout_.stride_bytes()) {}

float* TokenStore::key(int32_t kv_head, int32_t slot) {
  const size_t page =
      static_cast<size_t>(kv_head) * static_cast<size_t>(capacity_) + static_cast<size_t>(slot);
  return reinterpret_cast<float*>(memory_.data() + page * layout_.stride_bytes());
}

void TokenStore::Put(int32_t kv_head, int32_t slot, const float* key, const float* value) {
  const size_t bytes = static_cast<size_t>(layout_.head_dim) * sizeof(float);
  std::memcpy(this->key(kv_head, slot), key, bytes);
  std::memcpy(this->value(kv_head, slot), value, bytes);
}

absl::Status TokenStore::Attend(const kernels::OpTable& ops,
                                const kernels::ExecContext& exec,
                                std::span<std::vector<int32_t>> slots,
                                const kv::KvQueries& queries) {
  // Each KV head is a sequence with one row: its query heads.
  std::vector<kernels::SequenceRows> sequences;
  std::vector<int32_t> positions;
  for (int32_t head = 0; head < kv_heads_; ++head) {
    std::vector<int32_t>& pages = slots[static_cast<size_t>(head)];
    for (int32_t& page : pages) {
      page += head * capacity_;
    }
    sequences.push_back({.row_begin = head, .row_count = 1, .page_table = pages.data()});
    positions.push_back(static_cast<int32_t>(pages.size()) - 1);
  }
  const int32_t group = queries.heads / kv_heads_;
  const int64_t stride = int64_t{group} * layout_.head_dim;
  return ops.paged_attention(exec,
                             {.q = queries.q,
                              .q_stride = stride,
                              .positions = positions.data(),
                              .sequences = sequences.data(),
                              .num_sequences = kv_heads_,
                              .pages = {.base = memory_.data(), .layout = layout_},
                              .heads = group,
                              .scale = queries.scale,
                              .sliding_window = 0,
                              .out = queries.out,
                              .out_stride = stride});
}

void ReadTokens(const kv::WorkingKv& working,
                int32_t kv_layer,
                int32_t kv_head,
                int64_t tokens,
                std::span<float> keys,
                std::span<float> values) {
  const kernels::DensePageLayout& layout = working.pages.layout;
  const auto dim = static_cast<size_t>(layout.head_dim);
  const int32_t* table =
      working.table.data + static_cast<ptrdiff_t>(kv_layer) * working.table.stride;
  for (int64_t begin = 0; begin < tokens; begin += layout.page_tokens) {
    const auto page_id = static_cast<size_t>(table[begin / layout.page_tokens]);
    const std::byte* page = working.pages.base + page_id * layout.stride_bytes();
    const auto count =
        static_cast<size_t>(std::min<int64_t>(layout.page_tokens, tokens - begin)) * dim;
    const size_t element = static_cast<size_t>(begin) * dim;
    ReadVector(page + layout.key_offset(kv_head, 0), layout.dtype, count, &keys[element]);
    if (!values.empty()) {
      ReadVector(page + layout.value_offset(kv_head, 0), layout.dtype, count, &values[element]);
    }
  }
}

}  // namespace baton::lab
