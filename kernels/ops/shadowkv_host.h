// Parts of the ShadowKV ops that are the same in every back end on host memory: no arithmetic, only
// places, order and copies.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "kernels/core/exec_context.h"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kernels {

// kInvalidArgument when the context's workspace is smaller than `bytes`.
absl::Status CheckShadowKvWorkspace(absl::string_view op, const ExecContext& context, size_t bytes);

// Where a token is in its dense page.
struct PageSlot {
  const std::byte* page;
  int32_t slot;
};
PageSlot LocatePromptToken(const DensePages& pages, const int32_t* page_table, int64_t position);

// Chooses one head's static chunks (ShadowKV Algorithm 1: the sinks, then the lowest scores, ties
// to the lower id; ids ascend) and copies their and the local window's exact keys and values into
// params.prompt. scores, [layout.coded.chunks], are the smallest cosine of every chunk; order,
// [layout.coded.chunks], is scratch.
void WriteShadowKvExact(const ShadowKvEncodeParams& params,
                        int32_t head,
                        const float* scores,
                        int32_t* order);

}  // namespace baton::kernels
