#include "common/kv/codec/dense_format.h"

#include <cstdint>
#include <memory>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

#include "common/base/check.h"
#include "common/kv/codec/kv_format.h"
#include "kernels/core/dtype.h"
#include "kernels/kv_format/dense.h"

namespace baton::kv {

namespace {

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

}  // namespace

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
    return absl::InvalidArgumentError(absl::StrCat("KV format dense: page dtype ",
                                                   View(kernels::DTypeName(options.dtype)),
                                                   " is not supported; use bf16 or f32"));
  }
  const kernels::DensePageLayout layout = {.page_tokens = options.page_tokens,
                                           .kv_heads = dimensions.kv_heads,
                                           .head_dim = dimensions.head_dim,
                                           .dtype = options.dtype};
  return std::unique_ptr<DenseFormat>(new DenseFormat(dimensions.layers, layout));
}

int32_t DenseFormat::FinalPages(int64_t computed, int64_t prompt_tokens) const {
  BATON_CHECK(computed >= 0 && computed <= prompt_tokens);
  if (computed == prompt_tokens) {
    return layout_.pages_for(prompt_tokens);
  }
  return static_cast<int32_t>(computed / layout_.page_tokens);
}

}  // namespace baton::kv
