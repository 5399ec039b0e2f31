// Checks of what the host knows of the parameters of a decode step in format `shadowkv`, and how
// many sequences a launch takes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

#include "kernels/core/dtype.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/ops/param_checker.h"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kernels::cuda::shadowkv {

// Query heads of a KV head that kernels have columns for.
inline constexpr int64_t kMaxGroup = 16;
// Blocks of a grid's y and z.
inline constexpr int64_t kMaxGridRows = 65535;

inline void CheckBounds(const ShadowKvBounds& bounds, int64_t heads, ParamChecker& check) {
  check.Positive("bounds.kv_heads", bounds.kv_heads)
      .Positive("bounds.head_dim", bounds.head_dim)
      .Positive("heads", heads)
      .Require(bounds.kv_heads <= kMaxGridRows,
               "bounds.kv_heads",
               bounds.kv_heads,
               "must be at most 65535")
      .Require(bounds.kv_heads > 0 && heads % bounds.kv_heads == 0,
               "heads",
               heads,
               "must be a multiple of bounds.kv_heads");
}

// kUnimplemented for shapes without a kernel.
inline absl::Status CheckSupported(absl::string_view op,
                                   const ShadowKvBounds& bounds,
                                   int64_t heads) {
  const int64_t group = heads / bounds.kv_heads;
  if (bounds.dtype == DType::kBF16 && (bounds.head_dim == 64 || bounds.head_dim == 128) &&
      group <= kMaxGroup) {
    return absl::OkStatus();
  }
  return absl::UnimplementedError(
      absl::StrCat(op,
                   ": head_dim ",
                   bounds.head_dim,
                   " and ",
                   group,
                   " query heads per KV head; only bf16, 64 or 128, and up to ",
                   kMaxGroup,
                   " are supported"));
}

// Sequences that a launch takes when each needs so much workspace. kResourceExhausted without room
// for one.
inline absl::StatusOr<int64_t> RowsOfLaunch(absl::string_view op,
                                            const DeviceQueue& queue,
                                            size_t row_bytes) {
  const size_t held = queue.workspace().size();
  if (held < row_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat(op, ": the workspace has ", held, " bytes but a sequence needs ", row_bytes));
  }
  return static_cast<int64_t>(std::min<size_t>(held / row_bytes, kMaxGridRows));
}

}  // namespace baton::kernels::cuda::shadowkv
