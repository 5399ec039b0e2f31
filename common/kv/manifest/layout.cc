#include "common/kv/manifest/layout.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "common/kv/manifest/head_range.h"
#include "common/kv/manifest/reason.h"
#include "kernels/core/dtype.h"
#include "kernels/kv_format/dense.h"

namespace baton::kv {
namespace {

template <typename T>
absl::Status CheckField(const char* field, const T& ours, const T& theirs) {
  if (ours == theirs) {
    return absl::OkStatus();
  }
  return FailedPreconditionWithReason(
      kLayoutMismatch,
      absl::StrCat(
          "KV layout field ",
          field,
          " is ",
          ours,
          " here and ",
          theirs,
          " at the peer; both workers must run the same model with the same KV options and "
          "the same calibration"));
}

absl::Status CheckRange(const char* field, uint64_t value, uint64_t limit) {
  if (value == 0 || value > limit) {
    return absl::InvalidArgumentError(
        absl::StrCat("KV layout: ", field, " = ", value, " is not in 1..", limit));
  }
  return absl::OkStatus();
}

// The layout of pages that are divided by KV heads, without bytes that belong to no head.
std::optional<kernels::DensePageLayout> DividedPage(const v1::KvLayout& layout) {
  if (layout.format() != "dense" && layout.format() != "fp8") {
    return std::nullopt;
  }
  kernels::DensePageLayout page{.page_tokens = static_cast<int32_t>(layout.page_tokens()),
                                .kv_heads = static_cast<int32_t>(layout.kv_heads()),
                                .head_dim = static_cast<int32_t>(layout.head_dim())};
  constexpr std::array kTypes = {
      kernels::DType::kF32, kernels::DType::kBF16, kernels::DType::kF8E4M3};
  const auto* type = std::ranges::find(kTypes, layout.dtype(), kernels::DTypeName);
  if (type == kTypes.end()) {
    return std::nullopt;
  }
  page.dtype = *type;
  const int64_t bytes = TotalBytes(PiecesOfHeads(page, {.begin = 0, .end = page.kv_heads}));
  return bytes == static_cast<int64_t>(layout.page_bytes()) ? std::optional(page) : std::nullopt;
}

}  // namespace

v1::KvLayout DenseLayout(uint64_t model_fingerprint,
                         int32_t layers,
                         const kernels::DensePageLayout& page) {
  v1::KvLayout layout;
  layout.set_model_fingerprint(model_fingerprint);
  layout.set_layers(static_cast<uint32_t>(layers));
  layout.set_kv_heads(static_cast<uint32_t>(page.kv_heads));
  layout.set_head_dim(static_cast<uint32_t>(page.head_dim));
  layout.set_dtype(std::string(kernels::DTypeName(page.dtype)));
  layout.set_page_tokens(static_cast<uint32_t>(page.page_tokens));
  layout.set_page_bytes(page.page_bytes());
  layout.set_format("dense");
  layout.set_policy("dense");
  layout.set_shipped_layers(layout.layers());
  layout.set_format_version(kernels::DensePageLayout::kVersion);
  return layout;
}

absl::Status CheckLayout(const v1::KvLayout& ours, const v1::KvLayout& theirs) {
  BATON_RETURN_IF_ERROR(
      CheckField("model_fingerprint", ours.model_fingerprint(), theirs.model_fingerprint()));
  BATON_RETURN_IF_ERROR(CheckField("layers", ours.layers(), theirs.layers()));
  BATON_RETURN_IF_ERROR(CheckField("kv_heads", ours.kv_heads(), theirs.kv_heads()));
  BATON_RETURN_IF_ERROR(CheckField("head_dim", ours.head_dim(), theirs.head_dim()));
  BATON_RETURN_IF_ERROR(CheckField("dtype", ours.dtype(), theirs.dtype()));
  BATON_RETURN_IF_ERROR(CheckField("page_tokens", ours.page_tokens(), theirs.page_tokens()));
  BATON_RETURN_IF_ERROR(CheckField("page_bytes", ours.page_bytes(), theirs.page_bytes()));
  BATON_RETURN_IF_ERROR(CheckField("format", ours.format(), theirs.format()));
  BATON_RETURN_IF_ERROR(
      CheckField("format_version", ours.format_version(), theirs.format_version()));
  BATON_RETURN_IF_ERROR(CheckField("policy", ours.policy(), theirs.policy()));
  BATON_RETURN_IF_ERROR(
      CheckField("shipped_layers", ours.shipped_layers(), theirs.shipped_layers()));
  BATON_RETURN_IF_ERROR(
      CheckField("hidden_page_bytes", ours.hidden_page_bytes(), theirs.hidden_page_bytes()));
  return CheckField("calibration_digest", ours.calibration_digest(), theirs.calibration_digest());
}

absl::StatusOr<WindowGeometry> MakeWindowGeometry(const v1::KvLayout& layout,
                                                  int64_t prompt_tokens,
                                                  const WindowPages& pages) {
  const int64_t pages_per_layer = pages.per_layer;
  // Limits of the segment header's fields; layers x pages x page_bytes stays below 2^62.
  BATON_RETURN_IF_ERROR(CheckRange("layers", layout.layers(), 1u << 12));
  BATON_RETURN_IF_ERROR(CheckRange("kv_heads", layout.kv_heads(), (1u << 16) - 1));
  BATON_RETURN_IF_ERROR(CheckRange("page_bytes", layout.page_bytes(), uint64_t{1} << 36));
  BATON_RETURN_IF_ERROR(
      CheckRange("pages per layer", static_cast<uint64_t>(pages_per_layer), 1u << 24));
  if (layout.page_bytes() > (uint64_t{1} << 50) / static_cast<uint64_t>(pages_per_layer)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "KV layout: a layer of ", pages_per_layer, " pages of ", layout.page_bytes(), " bytes"));
  }
  BATON_RETURN_IF_ERROR(CheckRange("shipped_layers", layout.shipped_layers(), layout.layers()));
  if (pages.hidden != 0 || layout.hidden_page_bytes() != 0) {
    BATON_RETURN_IF_ERROR(
        CheckRange("hidden pages", static_cast<uint64_t>(pages.hidden), 1u << 24));
    BATON_RETURN_IF_ERROR(CheckRange("hidden_page_bytes", layout.hidden_page_bytes(), 1u << 26));
  }
  if (prompt_tokens <= 0 || prompt_tokens > (int64_t{1} << 24)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a prompt of ", prompt_tokens, " tokens; 1..2^24 can be handed over"));
  }
  WindowGeometry geometry;
  geometry.layers = static_cast<int32_t>(layout.shipped_layers());
  geometry.kv_heads = static_cast<int32_t>(layout.kv_heads());
  geometry.page_bytes = static_cast<int64_t>(layout.page_bytes());
  geometry.prompt_tokens = prompt_tokens;
  geometry.pages_per_layer = pages_per_layer;
  geometry.hidden_pages = pages.hidden;
  geometry.hidden_page_bytes = static_cast<int64_t>(layout.hidden_page_bytes());
  geometry.divided = DividedPage(layout);
  return geometry;
}

std::vector<PagePiece> WindowGeometry::pieces(int64_t section, const HeadRange& heads) const {
  if (!is_divided(section) || heads == HeadRange{.begin = 0, .end = kv_heads}) {
    return {{.offset = 0, .size_bytes = page_bytes_of(section)}};
  }
  return PiecesOfHeads(*divided, heads);
}

}  // namespace baton::kv
