// What ops of the CUDA back end ask of a page pool.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

#include "kernels/core/dtype.h"
#include "kernels/kv_format/dense.h"
#include "kernels/ops/param_checker.h"
#include "kernels/ops/params.h"

namespace baton::kernels::cuda {

// Kernels access pages in vectors, so that the pool has to be aligned as its pages are.
inline void CheckPages(const DensePages& pages, ParamChecker& check) {
  const auto misaligned = static_cast<int64_t>(reinterpret_cast<uintptr_t>(pages.base) % 64);
  check.Positive("pages.layout.page_tokens", pages.layout.page_tokens)
      .Positive("pages.layout.kv_heads", pages.layout.kv_heads)
      .Positive("pages.layout.head_dim", pages.layout.head_dim)
      .PageDType("pages.layout.dtype", pages.layout.dtype)
      .NotNull("pages.base", pages.base)
      .Require(misaligned == 0, "pages.base modulo 64", misaligned, "must be 0");
}

// kUnimplemented for pages and heads that attention on the matrix units has no kernel for; `fp8`:
// the op has one for f8e4m3 pages.
inline absl::Status CheckMatrixUnits(absl::string_view op,
                                     const DensePageLayout& layout,
                                     int64_t heads,
                                     int64_t max_group,
                                     bool fp8 = false) {
  const int64_t group = heads / layout.kv_heads;
  const bool has_dtype = layout.dtype == DType::kBF16 || (fp8 && layout.dtype == DType::kF8E4M3);
  if (has_dtype && (layout.head_dim == 64 || layout.head_dim == 128) && group <= max_group) {
    return absl::OkStatus();
  }
  const std::string_view dtype = DTypeName(layout.dtype);
  return absl::UnimplementedError(absl::StrCat(op,
                                               ": pages of ",
                                               absl::string_view(dtype.data(), dtype.size()),
                                               " with head_dim ",
                                               layout.head_dim,
                                               " and ",
                                               group,
                                               " query heads per KV head; only ",
                                               fp8 ? "bf16 and f8e4m3" : "bf16",
                                               ", 64 or 128, and up to ",
                                               max_group,
                                               " are supported"));
}

}  // namespace baton::kernels::cuda
