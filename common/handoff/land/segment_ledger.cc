#include "common/handoff/land/segment_ledger.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/engine/request.h"
#include "common/handoff/commit_digest.h"
#include "common/kv/manifest/head_range.h"
#include "common/kv/manifest/layout.h"
#include "common/kv/manifest/reason.h"
#include "common/kv/manifest/segment_header.h"
#include "common/transport/transport.h"

namespace baton::handoff {

SegmentLedger::SegmentLedger(const kv::v1::KvManifest& manifest,
                             const kv::WindowGeometry& geometry,
                             int32_t max_segments)
    : reservation_id_(manifest.reservation_id()),
      epoch_(manifest.epoch()),
      attempt_(manifest.attempt()),
      format_(kv::WireFormatNamed(manifest.layout().format())),
      format_version_(manifest.layout().format_version()),
      geometry_(geometry),
      max_segments_(max_segments),
      part_announced_(static_cast<size_t>(geometry.pages() * parts())),
      layer_page_end_(static_cast<size_t>(geometry.sections())),
      layer_part_count_(static_cast<size_t>(geometry.sections())) {}

absl::Status SegmentLedger::CheckIdentity(const kv::SegmentHeader& header) const {
  if (header.reservation_id != reservation_id_ || header.epoch != epoch_ ||
      header.attempt != attempt_) {
    return kv::FailedPreconditionWithReason(
        kv::kStaleEpoch,
        absl::StrCat("segment header of reservation ",
                     header.reservation_id,
                     ", attempt ",
                     header.attempt,
                     " on the stream of reservation ",
                     reservation_id_,
                     ", attempt ",
                     attempt_,
                     header.epoch == epoch_ ? "" : " with another epoch"));
  }
  if (format_ != header.format || header.format_version != format_version_) {
    return absl::FailedPreconditionError(absl::StrCat("segment of KV format ",
                                                      static_cast<uint16_t>(header.format),
                                                      " version ",
                                                      header.format_version,
                                                      "; the manifest says another, version ",
                                                      format_version_));
  }
  if (header.segment_index != segments_.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "segment ", header.segment_index, " where ", segments_.size(), " is the next"));
  }
  if (segments_.size() >= static_cast<size_t>(max_segments_)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("more than ", max_segments_, " segments in one attempt"));
  }
  return absl::OkStatus();
}

absl::Status SegmentLedger::CheckHeads(const kv::SegmentHeader& header) const {
  const bool whole = header.head_begin == 0 && header.head_count == geometry_.kv_heads;
  // That head_begin + head_count <= head_total was checked with the header itself.
  if (header.head_total == geometry_.kv_heads &&
      (whole || geometry_.is_divided(header.layer_begin))) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("segment of KV heads ",
                                                 header.head_begin,
                                                 " (",
                                                 header.head_count,
                                                 ") of ",
                                                 header.head_total,
                                                 "; the reservation has ",
                                                 geometry_.kv_heads,
                                                 whole ? "" : ", whole pages of them here"));
}

absl::StatusOr<SegmentExtent> SegmentLedger::CheckExtent(const kv::SegmentHeader& header) const {
  const int64_t layer_end = int64_t{header.layer_begin} + header.layer_count;
  const bool mixed = header.layer_count > 1 && layer_end > geometry_.layers;
  if (header.layer_count == 0 || layer_end > geometry_.sections() || mixed) {
    return absl::InvalidArgumentError(absl::StrCat("segment of layers ",
                                                   header.layer_begin,
                                                   "..",
                                                   layer_end,
                                                   "; the reservation has ",
                                                   geometry_.layers,
                                                   " and hidden states on their own"));
  }
  BATON_RETURN_IF_ERROR(CheckHeads(header));
  const int64_t page_end = int64_t{header.page_begin} + header.page_count;
  if (header.page_count == 0 || page_end > geometry_.pages_of(header.layer_begin)) {
    return absl::InvalidArgumentError(absl::StrCat("segment of pages ",
                                                   header.page_begin,
                                                   "..",
                                                   page_end,
                                                   "; the reservation has ",
                                                   geometry_.pages_of(header.layer_begin),
                                                   " there"));
  }
  SegmentExtent extent;
  extent.layer_begin = header.layer_begin;
  extent.layer_end = layer_end;
  extent.page_begin = header.page_begin;
  extent.page_end = page_end;
  extent.heads = {.begin = header.head_begin, .end = header.head_begin + header.head_count};
  extent.checksum = header.checksum;
  const int64_t payload_bytes = (extent.layer_end - extent.layer_begin) *
                                (extent.page_end - extent.page_begin) *
                                kv::TotalBytes(geometry_.pieces(extent.layer_begin, extent.heads));
  if (header.payload_bytes != static_cast<uint64_t>(payload_bytes)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "segment of ", header.payload_bytes, " bytes; its pages have ", payload_bytes));
  }
  return extent;
}

std::pair<size_t, size_t> SegmentLedger::PartsOf(const SegmentExtent& extent,
                                                 int64_t layer,
                                                 int64_t page) const {
  const int64_t first = geometry_.index(layer, page) * parts();
  if (!geometry_.is_divided(layer)) {
    return {first, first + parts()};
  }
  return {first + extent.heads.begin, first + extent.heads.end};
}

absl::StatusOr<uint32_t> SegmentLedger::Announce(const kv::SegmentHeader& header) {
  BATON_RETURN_IF_ERROR(CheckIdentity(header));
  BATON_ASSIGN_OR_RETURN(const SegmentExtent extent, CheckExtent(header));
  for (int64_t layer = extent.layer_begin; layer < extent.layer_end; ++layer) {
    for (int64_t page = extent.page_begin; page < extent.page_end; ++page) {
      const auto [begin, end] = PartsOf(extent, layer, page);
      for (size_t part = begin; part < end; ++part) {
        if (part_announced_[part]) {
          return absl::InvalidArgumentError(
              absl::StrCat("page ", page, " of layer ", layer, " is in two segments"));
        }
      }
    }
  }
  for (int64_t layer = extent.layer_begin; layer < extent.layer_end; ++layer) {
    const auto index = static_cast<size_t>(layer);
    for (int64_t page = extent.page_begin; page < extent.page_end; ++page) {
      const auto [begin, end] = PartsOf(extent, layer, page);
      for (size_t part = begin; part < end; ++part) {
        part_announced_[part] = true;
      }
      layer_part_count_[index] += static_cast<int64_t>(end - begin);
    }
    layer_page_end_[index] = std::max(layer_page_end_[index], extent.page_end);
  }
  payload_bytes_ += static_cast<int64_t>(header.payload_bytes);
  segments_.push_back(extent);
  checksums_.push_back(extent.checksum);
  return header.segment_index;
}

std::vector<transport::ReceiveRun> SegmentLedger::Runs(uint32_t segment_index) const {
  const SegmentExtent& extent = segments_[segment_index];
  const std::vector<kv::PagePiece> pieces = geometry_.pieces(extent.layer_begin, extent.heads);
  const bool whole = pieces.front().size_bytes == geometry_.page_bytes_of(extent.layer_begin);
  std::vector<transport::ReceiveRun> runs;
  for (int64_t layer = extent.layer_begin; layer < extent.layer_end; ++layer) {
    const int64_t pages = extent.page_end - extent.page_begin;
    if (whole) {
      runs.push_back({.offset = geometry_.offset(layer, extent.page_begin),
                      .size_bytes = pages * pieces.front().size_bytes});
      continue;
    }
    for (int64_t page = extent.page_begin; page < extent.page_end; ++page) {
      for (const kv::PagePiece& piece : pieces) {
        runs.push_back({.offset = geometry_.offset(layer, page) + piece.offset,
                        .size_bytes = piece.size_bytes});
      }
    }
  }
  return runs;
}

absl::Status SegmentLedger::MarkLanded(uint32_t segment_index, uint64_t checksum) {
  SegmentExtent& extent = segments_[segment_index];
  BATON_CHECK(!extent.landed);
  if (checksum != extent.checksum) {
    return absl::DataLossError(absl::StrCat("the checksum of layers ",
                                            extent.layer_begin,
                                            "..",
                                            extent.layer_end,
                                            ", pages ",
                                            extent.page_begin,
                                            "..",
                                            extent.page_end,
                                            ", heads ",
                                            extent.heads.begin,
                                            "..",
                                            extent.heads.end,
                                            " of reservation ",
                                            reservation_id_,
                                            " does not match; the payload was damaged on its way"));
  }
  extent.landed = true;
  ++landed_;
  return absl::OkStatus();
}

std::optional<engine::LandedPages> SegmentLedger::PagesOf(uint32_t segment_index) const {
  const SegmentExtent& extent = segments_[segment_index];
  const bool all_heads = extent.heads.end - extent.heads.begin == geometry_.kv_heads;
  if (geometry_.is_hidden(extent.layer_begin) || !all_heads) {
    return std::nullopt;
  }
  return engine::LandedPages{.layer_begin = static_cast<int32_t>(extent.layer_begin),
                             .layer_end = static_cast<int32_t>(extent.layer_end),
                             .page_begin = static_cast<int32_t>(extent.page_begin),
                             .page_end = static_cast<int32_t>(extent.page_end)};
}

// They are announced in the prompt's order; what is announced in another is not counted.
int32_t SegmentLedger::hidden_landed() const {
  if (geometry_.hidden_pages == 0) {
    return 0;
  }
  int64_t pages = 0;
  for (const SegmentExtent& extent : segments_) {
    if (extent.layer_begin == geometry_.layers && extent.page_begin == pages && extent.landed) {
      pages = extent.page_end;
    }
  }
  return static_cast<int32_t>(pages);
}

absl::Status SegmentLedger::CheckCommit(const worker::v1::Commit& commit,
                                        const std::vector<int32_t>& sent_pages) const {
  if (commit.segments() != segments_.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "commit of ", commit.segments(), " segments; ", segments_.size(), " were announced"));
  }
  if (commit.payload_bytes() != static_cast<uint64_t>(payload_bytes())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "commit of ", commit.payload_bytes(), " bytes; ", payload_bytes(), " were announced"));
  }
  for (size_t layer = 0; layer < layer_part_count_.size(); ++layer) {
    // So many pages that end there are the first ones, without a gap.
    if (layer_part_count_[layer] != sent_pages[layer] * parts() ||
        layer_page_end_[layer] != sent_pages[layer]) {
      return absl::InvalidArgumentError(absl::StrCat("commit with ",
                                                     layer_part_count_[layer],
                                                     " of layer ",
                                                     layer,
                                                     "'s ",
                                                     sent_pages[layer] * parts(),
                                                     " parts: the first ",
                                                     sent_pages[layer],
                                                     " pages in all heads"));
    }
  }
  if (commit.digest() != CommitDigest(checksums_, commit)) {
    return absl::DataLossError(
        "commit: the digest over segment checksums and the commit itself does not match");
  }
  return absl::OkStatus();
}

}  // namespace baton::handoff
