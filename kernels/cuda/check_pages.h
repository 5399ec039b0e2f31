// What ops of the CUDA back end ask of a page pool.
#pragma once

#include <cstdint>

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

}  // namespace baton::kernels::cuda
