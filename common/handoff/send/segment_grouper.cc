#include "common/handoff/send/segment_grouper.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "common/base/pieces.h"
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
  const int64_t layers = ready.layer_end - ready.layer_begin;
  const int64_t page_bytes = geometry_.page_bytes_of(ready.layer_begin);
  if (std::cmp_not_equal(BytesOf(ready.memory), layers * ready.page_count * page_bytes)) {
    return absl::InternalError(absl::StrCat(BytesOf(ready.memory),
                                            " bytes were handed over where ",
                                            ready.page_count,
                                            " pages of ",
                                            page_bytes,
                                            " bytes belong, of each of ",
                                            layers,
                                            " layers"));
  }
  return absl::OkStatus();
}

bool SegmentGrouper::Continues(const engine::ReadyKv& ready) const {
  return !geometry_.is_hidden(ready.layer_begin) && pending_->device == ready.device &&
         pending_->page_begin == ready.page_begin && pending_->page_count == ready.page_count &&
         pending_->layer_begin + pending_->layer_count == ready.layer_begin;
}

absl::StatusOr<std::vector<Segment>> SegmentGrouper::Add(const engine::ReadyKv& ready,
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
                       .device = ready.device,
                       .encoded = ready.encoded};
  }
  pending_->layer_count += ready.layer_end - ready.layer_begin;
  for (const std::span<const std::byte> piece : ready.memory) {
    AddAdjacent(piece, pending_->memory);
  }
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
