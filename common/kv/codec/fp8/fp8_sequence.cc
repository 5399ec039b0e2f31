#include "common/kv/codec/fp8/fp8_sequence.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "kernels/core/half.h"
#include "kernels/ops/op_table.h"

namespace baton::kv {
namespace {

// Tokens that are widened at a time.
constexpr int64_t kTokens = 256;

// One head's key or value of a dense page as fp32.
void Widen(const std::byte* source, kernels::DType dtype, int32_t n, float* target) {
  if (dtype == kernels::DType::kF32) {
    std::memcpy(target, source, static_cast<size_t>(n) * sizeof(float));
    return;
  }
  const auto* bits = reinterpret_cast<const uint16_t*>(source);
  for (int32_t i = 0; i < n; ++i) {
    target[i] = kernels::BF16ToF32(bits[i]);
  }
}

}  // namespace

Fp8Sequence::Fp8Sequence(Fp8Codec& codec,
                         int64_t prompt_tokens,
                         int64_t max_tokens,
                         std::vector<PageId> ids)
    : codec_(codec),
      prompt_tokens_(prompt_tokens),
      layers_(codec.context().dimensions.layers),
      pages_per_layer_(codec.layout().pages_for(prompt_tokens + max_tokens)),
      prompt_pages_(codec.layout().pages_for(prompt_tokens)),
      ids_(std::move(ids)),
      held_(layers_, prompt_tokens) {
  BATON_CHECK(static_cast<int64_t>(ids_.size()) == int64_t{layers_} * pages_per_layer_);
}

Fp8Sequence::~Fp8Sequence() { codec_.pool().ReleaseAll(ids_); }

absl::Status Fp8Sequence::EncodeLayer(const WorkingKv& working, int32_t kv_layer) {
  // Shipped bytes are a function of the tokens alone: unused slots of the last page are zero.
  const PageId last = page_table(kv_layer)[prompt_pages_ - 1];
  const std::span<std::byte> page = codec_.pool().page(last);
  std::fill(page.begin(), page.end(), std::byte{0});
  for (int64_t token = 0; token < prompt_tokens_; token += kTokens) {
    BATON_RETURN_IF_ERROR(
        EncodeTokens(working, kv_layer, token, std::min(kTokens, prompt_tokens_ - token)));
  }
  held_.TakeLayers(1);
  return absl::OkStatus();
}

absl::Status Fp8Sequence::EncodeTokens(const WorkingKv& working,
                                       int32_t kv_layer,
                                       int64_t token_begin,
                                       int64_t token_count) {
  const kernels::DensePageLayout& dense = working.pages.layout;
  const int32_t* table =
      working.table.data + static_cast<ptrdiff_t>(kv_layer) * working.table.stride;
  const int64_t width = int64_t{dense.kv_heads} * dense.head_dim;
  std::vector<float> keys(static_cast<size_t>(token_count * width));
  std::vector<float> values(keys.size());
  for (int64_t i = 0; i < token_count; ++i) {
    const int64_t token = token_begin + i;
    const auto slot = static_cast<int32_t>(token % dense.page_tokens);
    const std::byte* page =
        working.pages.base +
        static_cast<size_t>(table[token / dense.page_tokens]) * dense.stride_bytes();
    for (int32_t head = 0; head < dense.kv_heads; ++head) {
      const int64_t offset = i * width + int64_t{head} * dense.head_dim;
      Widen(page + dense.key_offset(head, slot),
            dense.dtype,
            dense.head_dim,
            &keys[static_cast<size_t>(offset)]);
      Widen(page + dense.value_offset(head, slot),
            dense.dtype,
            dense.head_dim,
            &values[static_cast<size_t>(offset)]);
    }
  }
  std::vector<int32_t> positions(static_cast<size_t>(token_count));
  std::iota(positions.begin(), positions.end(), static_cast<int32_t>(token_begin));
  const kernels::SequenceRows rows = {.row_begin = 0,
                                      .row_count = static_cast<int32_t>(token_count),
                                      .page_table = page_table(kv_layer)};
  return codec_.context().ops->kv_write(codec_.context().exec,
                                        {.k = keys.data(),
                                         .k_stride = width,
                                         .v = values.data(),
                                         .v_stride = width,
                                         .positions = positions.data(),
                                         .sequences = &rows,
                                         .num_sequences = 1,
                                         .pages = codec_.pages()});
}

std::vector<std::span<const std::byte>> Fp8Sequence::LayerPages(int32_t kv_layer) const {
  std::vector<std::span<const std::byte>> pages;
  for (int32_t i = 0; i < prompt_pages_; ++i) {
    pages.push_back(
        codec_.pool().page(page_table(kv_layer)[i]).first(codec_.layout().page_bytes()));
  }
  return pages;
}

std::vector<std::span<std::byte>> Fp8Sequence::Window() {
  std::vector<std::span<std::byte>> window;
  for (int32_t kv_layer = 0; kv_layer < layers_; ++kv_layer) {
    for (int32_t i = 0; i < prompt_pages_; ++i) {
      window.push_back(
          codec_.pool().page(page_table(kv_layer)[i]).first(codec_.layout().page_bytes()));
    }
  }
  return window;
}

absl::Status Fp8Sequence::Adopt(std::string_view state, int32_t layers) {
  BATON_RETURN_IF_ERROR(SentPages(state, layers).status());
  held_.TakeLayers(layers);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> Fp8Sequence::SentPages(std::string_view state,
                                                            int32_t layers) const {
  if (!state.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("fp8 has no state beside its pages; ", state.size(), " bytes came"));
  }
  return std::vector<int32_t>(static_cast<size_t>(layers), prompt_pages_);
}

absl::Status Fp8Sequence::CopyTo(EncodedKv& other) const {
  auto& target = static_cast<Fp8Sequence&>(other);
  target.held_ = held_;
  for (int32_t kv_layer = 0; kv_layer < layers_; ++kv_layer) {
    for (int32_t i = 0; i < prompt_pages_; ++i) {
      std::memcpy(codec_.pool().page(target.page_table(kv_layer)[i]).data(),
                  codec_.pool().page(page_table(kv_layer)[i]).data(),
                  codec_.layout().page_bytes());
    }
  }
  return absl::OkStatus();
}

int64_t Fp8Sequence::ResidentBytes() const {
  return int64_t{layers_} * prompt_pages_ *
         static_cast<int64_t>(codec_.layout().page_bytes() + sizeof(PageId));
}

int64_t Fp8Sequence::ReservedBytes() const {
  return static_cast<int64_t>(ids_.size() * codec_.layout().stride_bytes());
}

void Fp8Sequence::CountAttention(int32_t position) {
  const int64_t kv_heads = codec_.layout().kv_heads;
  counters_.heads += kv_heads;
  counters_.attended_tokens += kv_heads * (int64_t{position} + 1);
}

}  // namespace baton::kv
