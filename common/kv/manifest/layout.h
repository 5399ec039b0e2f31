// The layout on which both sides of a hand-off must agree.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/kv/manifest/head_range.h"
#include "kernels/kv_format/dense.h"
#include "proto/baton/kv/v1/manifest.pb.h"

namespace baton::kv {

// Layout of a model whose KV is kept in `dense` pages. `layers` counts stored KV layers.
v1::KvLayout DenseLayout(uint64_t model_fingerprint,
                         int32_t layers,
                         const kernels::DensePageLayout& page);

// kFailedPrecondition (LAYOUT_MISMATCH) naming the first field that differs and both values.
absl::Status CheckLayout(const v1::KvLayout& ours, const v1::KvLayout& theirs);

// How many pages a prompt's window has.
struct WindowPages {
  int64_t per_layer = 0;
  int64_t hidden = 0;
};

// The sizes that place a page of a sequence's prompt in its window. The window's sections are the
// shipped layers, pages_per_layer pages of page_bytes each, and behind them one of hidden states,
// if there are any. A format that decides how many pages a layer takes fills the first ones.
struct WindowGeometry {
  int32_t layers = 0;
  int32_t kv_heads = 0;
  int64_t page_bytes = 0;
  int64_t prompt_tokens = 0;
  int64_t pages_per_layer = 0;
  int64_t hidden_pages = 0;
  int64_t hidden_page_bytes = 0;
  // The layers' pages where their bytes are divided by KV heads, so that a segment may carry a
  // range of these; none: whole pages only.
  std::optional<kernels::DensePageLayout> divided{};

  int64_t sections() const { return layers + (hidden_pages > 0 ? 1 : 0); }
  bool is_hidden(int64_t section) const { return section == layers; }
  int64_t pages_of(int64_t section) const {
    return is_hidden(section) ? hidden_pages : pages_per_layer;
  }
  int64_t page_bytes_of(int64_t section) const {
    return is_hidden(section) ? hidden_page_bytes : page_bytes;
  }
  // Whether a segment of the section may carry a range of heads.
  bool is_divided(int64_t section) const { return divided.has_value() && !is_hidden(section); }
  // Where `heads` lie in a page of the section, ascending; in one that is not divided they are the
  // whole page.
  std::vector<PagePiece> pieces(int64_t section, const HeadRange& heads) const;
  // Position of a page in the list of the window's pages, and of its first byte.
  int64_t index(int64_t section, int64_t page) const { return section * pages_per_layer + page; }
  int64_t offset(int64_t section, int64_t page) const {
    return section * pages_per_layer * page_bytes + page * page_bytes_of(section);
  }
  int64_t pages() const { return index(layers, hidden_pages); }
  int64_t window_bytes() const { return offset(layers, hidden_pages); }
};

// kInvalidArgument naming the field when the layout or the prompt's extent make no sense. Every
// product of the fields fits in 62 bits.
absl::StatusOr<WindowGeometry> MakeWindowGeometry(const v1::KvLayout& layout,
                                                  int64_t prompt_tokens,
                                                  const WindowPages& pages);

}  // namespace baton::kv
