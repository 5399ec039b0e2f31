// Checks of what the host knows of the parameters of ops that write format `shadowkv`.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/param_checker.h"
#include "kernels/ops/params.h"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kernels::cuda::shadowkv {

inline void CheckAligned(absl::string_view field,
                         const void* pointer,
                         uintptr_t alignment,
                         ParamChecker& check) {
  check.NotNull(field, pointer)
      .Require(reinterpret_cast<uintptr_t>(pointer) % alignment == 0,
               field,
               static_cast<int64_t>(reinterpret_cast<uintptr_t>(pointer)),
               "must be aligned to 16 bytes, to 64 if it is a section");
}

// Angles are read in vectors of 16 bytes.
inline void CheckRopeTables(const ShadowKvRope& rope, ParamChecker& check) {
  CheckAligned("rope.cosines", rope.cosines, 16, check);
  CheckAligned("rope.sines", rope.sines, 16, check);
}

// Beyond what every back end asks: heads that lie over a warp, and that a grid has a row for.
inline void CheckHeads(const ShadowKvConfig& config, ParamChecker& check) {
  constexpr int32_t kMostDim = 256;
  constexpr int32_t kMostHeads = 65535;
  check
      .Require(
          config.head_dim <= kMostDim, "config.head_dim", config.head_dim, "must be at most 256")
      .Require(config.kv_heads <= kMostHeads,
               "config.kv_heads",
               config.kv_heads,
               "must be at most 65535");
}

// kResourceExhausted when the queue's workspace is smaller than `bytes`.
inline absl::Status CheckWorkspace(absl::string_view op, const DeviceQueue& queue, size_t bytes) {
  const size_t held = queue.workspace().size();
  if (held < bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat(op, ": the workspace has ", held, " bytes but ", bytes, " are needed"));
  }
  return absl::OkStatus();
}

}  // namespace baton::kernels::cuda::shadowkv
