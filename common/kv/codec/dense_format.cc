#include "common/kv/codec/dense_format.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "common/base/check.h"

namespace baton::kv {

absl::StatusOr<std::unique_ptr<DenseFormat>> DenseFormat::Create(const KvDimensions& dimensions,
                                                                 const KvPageOptions& options) {
  if (dimensions.layers <= 0 || dimensions.kv_heads <= 0 || dimensions.head_dim <= 0 ||
      options.page_tokens <= 0) {
    return absl::InvalidArgumentError(absl::StrCat("KV format dense: layers ",
                                                   dimensions.layers,
                                                   ", kv_heads ",
                                                   dimensions.kv_heads,
                                                   ", head_dim ",
                                                   dimensions.head_dim,
                                                   ", page_tokens ",
                                                   options.page_tokens,
                                                   "; all must be positive"));
  }
  if (options.dtype != kernels::DType::kBF16 && options.dtype != kernels::DType::kF32) {
    const std::string_view dtype = kernels::DTypeName(options.dtype);
    return absl::InvalidArgumentError(absl::StrCat("KV format dense: page dtype ",
                                                   absl::string_view(dtype.data(), dtype.size()),
                                                   " is not supported; use bf16 or f32"));
  }
  return std::unique_ptr<DenseFormat>(new DenseFormat(dimensions.layers,
                                                      {.page_tokens = options.page_tokens,
                                                       .kv_heads = dimensions.kv_heads,
                                                       .head_dim = dimensions.head_dim,
                                                       .dtype = options.dtype}));
}

int32_t DenseFormat::FinalPages(int64_t computed, int64_t prompt_tokens) const {
  BATON_CHECK(computed >= 0 && computed <= prompt_tokens);
  if (computed == prompt_tokens) {
    return layout_.pages_for(prompt_tokens);
  }
  return static_cast<int32_t>(computed / layout_.page_tokens);
}

}  // namespace baton::kv
