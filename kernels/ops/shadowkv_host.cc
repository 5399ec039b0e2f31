#include "kernels/ops/shadowkv_host.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

#include "kernels/core/exec_context.h"
#include "kernels/kv_format/dense.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kernels {
namespace {

// Sinks, then the lowest scores among the other chunks; ids ascend.
void ChooseStatic(const ShadowKvPromptLayout& layout,
                  const float* scores,
                  int32_t* order,
                  int32_t* ids) {
  std::iota(order, order + layout.coded.chunks, 0);
  const int64_t sinks = std::min<int64_t>(layout.config.sink_chunks, layout.static_chunks);
  std::partial_sort(
      order + sinks,
      order + layout.static_chunks,
      order + layout.coded.chunks,
      [&](int32_t a, int32_t b) { return scores[a] != scores[b] ? scores[a] < scores[b] : a < b; });
  std::sort(order, order + layout.static_chunks);
  std::copy(order, order + layout.static_chunks, ids);
}

// Copies one head's exact key and value of a prompt token.
void CopyToken(const ShadowKvEncodeParams& params,
               int64_t position,
               int32_t head,
               std::byte* key,
               std::byte* value) {
  const DensePageLayout& layout = params.pages.layout;
  const PageSlot at = LocatePromptToken(params.pages, params.page_table, position);
  const size_t bytes = params.layout.config.vector_bytes();
  std::memcpy(key, at.page + layout.key_offset(head, at.slot), bytes);
  std::memcpy(value, at.page + layout.value_offset(head, at.slot), bytes);
}

}  // namespace

absl::Status CheckShadowKvWorkspace(absl::string_view op,
                                    const ExecContext& context,
                                    size_t bytes) {
  const size_t held = context.workspace == nullptr ? 0 : context.workspace->size();
  if (held < bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(op,
                     ": the workspace holds ",
                     held,
                     " bytes but ",
                     bytes,
                     " are needed; size it with OpTable::shadowkv_workspace_bytes"));
  }
  return absl::OkStatus();
}

PageSlot LocatePromptToken(const DensePages& pages, const int32_t* page_table, int64_t position) {
  const DensePageLayout& layout = pages.layout;
  const auto id = static_cast<size_t>(page_table[position / layout.page_tokens]);
  return {.page = pages.base + id * layout.stride_bytes(),
          .slot = static_cast<int32_t>(position % layout.page_tokens)};
}

void WriteShadowKvExact(const ShadowKvEncodeParams& params,
                        int32_t head,
                        const float* scores,
                        int32_t* order) {
  const ShadowKvPromptLayout& layout = params.layout;
  std::byte* prompt = params.prompt;
  const int64_t chunk = layout.config.chunk_tokens;
  const size_t bytes = layout.config.vector_bytes();
  auto* ids = reinterpret_cast<int32_t*>(prompt + layout.static_ids) + head * layout.static_chunks;
  ChooseStatic(layout, scores, order, ids);
  for (int64_t i = 0; i < layout.static_chunks * chunk; ++i) {
    const size_t at = static_cast<size_t>(head * layout.static_chunks * chunk + i) * bytes;
    CopyToken(params,
              ids[i / chunk] * chunk + i % chunk,
              head,
              prompt + layout.static_keys + at,
              prompt + layout.static_values + at);
  }
  for (int64_t i = 0; i < layout.local_tokens; ++i) {
    const size_t at = static_cast<size_t>(head * layout.local_tokens + i) * bytes;
    CopyToken(params,
              layout.coded.tokens + i,
              head,
              prompt + layout.local_keys + at,
              prompt + layout.local_values + at);
  }
}

}  // namespace baton::kernels
