#include "absl/status/status.h"

#include "kernels/core/dtype.h"
#include "kernels/kv_format/dense.h"
#include "kernels/ops/fp8_params.h"
#include "kernels/ops/param_checker.h"
#include "kernels/ops/validate.h"

namespace baton::kernels {

absl::Status Validate(const Fp8EncodeParams& params) {
  ParamChecker check("fp8_encode");
  check.NotNegative("first_token", params.first_token)
      .AtLeast("tokens", params.tokens, params.first_token);
  if (!check.ok() || params.tokens == params.first_token) {
    return check.status();
  }
  const DensePageLayout& source = params.source.layout;
  const DensePageLayout& target = params.pages.layout;
  check.Positive("source.layout.page_tokens", source.page_tokens)
      .Positive("pages.layout.page_tokens", target.page_tokens)
      .Positive("pages.layout.kv_heads", target.kv_heads)
      .Positive("pages.layout.head_dim", target.head_dim)
      .FloatDType("source.layout.dtype", source.dtype)
      .Require(target.dtype == DType::kF8E4M3,
               "pages.layout.dtype",
               static_cast<int64_t>(target.dtype),
               "must be f8e4m3")
      .Require(source.kv_heads == target.kv_heads,
               "source.layout.kv_heads",
               source.kv_heads,
               "must be pages.layout.kv_heads")
      .Require(source.head_dim == target.head_dim,
               "source.layout.head_dim",
               source.head_dim,
               "must be pages.layout.head_dim")
      .NotNull("source.base", params.source.base)
      .NotNull("source_table", params.source_table)
      .NotNull("pages.base", params.pages.base)
      .NotNull("page_table", params.page_table);
  return check.status();
}

}  // namespace baton::kernels
