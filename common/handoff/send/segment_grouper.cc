#include "common/handoff/send/segment_grouper.h"

#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "common/engine/kv_sink.h"

namespace baton::handoff {

absl::Status SegmentGrouper::Check(const engine::ReadyKv& ready) const {
  const bool mixed = ready.layer_end > geometry_.layers && ready.layer_end - ready.layer_begin > 1;
  const bool in_range =
      0 <= ready.layer_begin && ready.layer_begin < ready.layer_end &&
      ready.layer_end <= geometry_.sections() && !mixed && 0 <= ready.page_begin &&
      ready.page_count > 0 &&
      int64_t{ready.page_begin} + ready.page_count <= geometry_.pages_of(ready.layer_begin);
  if (!in_range) {
    return absl::InternalError(absl::StrCat("KV of layers ",
                                            ready.layer_begin,
                                            "..",
                                            ready.layer_end,
                                            ", pages from ",
                                            ready.page_begin,
                                            " (",
                                            ready.page_count,
                                            ") is outside the reservation"));
  }
  const auto pages = static_cast<size_t>(ready.layer_end - ready.layer_begin) *
                     static_cast<size_t>(ready.page_count);
  if (ready.pages.size() != pages) {
    return absl::InternalError(
        absl::StrCat(ready.pages.size(), " pages were handed over where ", pages, " belong"));
  }
  for (const std::span<const std::byte> page : ready.pages) {
    if (static_cast<int64_t>(page.size()) != geometry_.page_bytes_of(ready.layer_begin)) {
      return absl::InternalError(absl::StrCat("a page of ",
                                              page.size(),
                                              " bytes; the layout says ",
                                              geometry_.page_bytes_of(ready.layer_begin)));
    }
  }
  return absl::OkStatus();
}

bool SegmentGrouper::Continues(const engine::ReadyKv& ready) const {
  return !geometry_.is_hidden(ready.layer_begin) && pending_->device == ready.device &&
         pending_->page_begin == ready.page_begin && pending_->page_count == ready.page_count &&
         pending_->layer_begin + pending_->layer_count == ready.layer_begin;
}

absl::StatusOr<std::vector<Segment>> SegmentGrouper::Add(engine::ReadyKv ready,
                                                         int64_t segment_bytes) {
  BATON_RETURN_IF_ERROR(Check(ready));
  std::vector<Segment> complete;
  if (pending_.has_value() && !Continues(ready)) {
    complete.push_back(*Flush());
  }
  if (!pending_.has_value()) {
    pending_ = Segment{.layer_begin = ready.layer_begin,
                       .page_begin = ready.page_begin,
                       .page_count = ready.page_count,
                       .device = ready.device};
  }
  pending_->layer_count += ready.layer_end - ready.layer_begin;
  pending_->pages.insert(pending_->pages.end(), ready.pages.begin(), ready.pages.end());
  const int64_t prefill_chunk_bytes =
      int64_t{ready.page_count} * geometry_.page_bytes * geometry_.layers;
  const bool large = pending_->payload_bytes() >= segment_bytes;
  if (large || prefill_chunk_bytes < segment_bytes || ready.layer_end >= geometry_.layers) {
    complete.push_back(*Flush());
  }
  return complete;
}

std::optional<Segment> SegmentGrouper::Flush() { return std::exchange(pending_, std::nullopt); }

}  // namespace baton::handoff
