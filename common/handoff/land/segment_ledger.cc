#include "common/handoff/land/segment_ledger.h"

#include "absl/strings/str_cat.h"

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/kv/manifest/digest.h"
#include "common/kv/manifest/reason.h"

namespace baton::handoff {

SegmentLedger::SegmentLedger(const kv::v1::KvManifest& manifest,
                             const kv::WindowGeometry& geometry,
                             int32_t max_segments)
    : reservation_id_(manifest.reservation_id()),
      epoch_(manifest.epoch()),
      attempt_(manifest.attempt()),
      format_version_(manifest.layout().format_version()),
      geometry_(geometry),
      max_segments_(max_segments),
      page_announced_(static_cast<size_t>(geometry.layers * geometry.pages_per_layer)) {}

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
  if (header.format_version != format_version_) {
    return absl::FailedPreconditionError(absl::StrCat("segment of dense format version ",
                                                      header.format_version,
                                                      "; the manifest says version ",
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

absl::StatusOr<SegmentExtent> SegmentLedger::CheckExtent(const kv::SegmentHeader& header) const {
  const int64_t layer_end = int64_t{header.layer_begin} + header.layer_count;
  if (header.layer_count == 0 || layer_end > geometry_.layers) {
    return absl::InvalidArgumentError(absl::StrCat("segment of layers ",
                                                   header.layer_begin,
                                                   "..",
                                                   layer_end,
                                                   "; the reservation has ",
                                                   geometry_.layers));
  }
  if (header.head_begin != 0 || header.head_count != geometry_.kv_heads) {
    return absl::InvalidArgumentError(absl::StrCat("segment of KV heads ",
                                                   header.head_begin,
                                                   " (",
                                                   header.head_count,
                                                   "); whole pages of ",
                                                   geometry_.kv_heads,
                                                   " heads are wanted"));
  }
  const int64_t token_end = int64_t{header.token_begin} + header.token_count;
  const bool whole_pages =
      header.token_begin % geometry_.page_tokens == 0 &&
      (token_end % geometry_.page_tokens == 0 || token_end == geometry_.prompt_tokens);
  if (header.token_count == 0 || token_end > geometry_.prompt_tokens || !whole_pages) {
    return absl::InvalidArgumentError(absl::StrCat("segment of tokens ",
                                                   header.token_begin,
                                                   "..",
                                                   token_end,
                                                   "; whole pages of ",
                                                   geometry_.page_tokens,
                                                   " tokens of a prompt of ",
                                                   geometry_.prompt_tokens,
                                                   " are wanted"));
  }
  SegmentExtent extent;
  extent.layer_begin = header.layer_begin;
  extent.layer_end = layer_end;
  extent.page_begin = header.token_begin / geometry_.page_tokens;
  extent.page_end = (token_end + geometry_.page_tokens - 1) / geometry_.page_tokens;
  extent.checksum = header.checksum;
  const int64_t payload_bytes = (extent.layer_end - extent.layer_begin) *
                                (extent.page_end - extent.page_begin) * geometry_.page_bytes;
  if (header.payload_bytes != static_cast<uint64_t>(payload_bytes)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "segment of ", header.payload_bytes, " bytes; its pages have ", payload_bytes));
  }
  return extent;
}

absl::StatusOr<uint32_t> SegmentLedger::Announce(const kv::SegmentHeader& header) {
  BATON_RETURN_IF_ERROR(CheckIdentity(header));
  BATON_ASSIGN_OR_RETURN(const SegmentExtent extent, CheckExtent(header));
  const auto at = [this](int64_t layer, int64_t page) {
    return static_cast<size_t>(layer * geometry_.pages_per_layer + page);
  };
  for (int64_t layer = extent.layer_begin; layer < extent.layer_end; ++layer) {
    for (int64_t page = extent.page_begin; page < extent.page_end; ++page) {
      if (page_announced_[at(layer, page)]) {
        return absl::InvalidArgumentError(
            absl::StrCat("page ", page, " of layer ", layer, " is in two segments"));
      }
    }
  }
  for (int64_t layer = extent.layer_begin; layer < extent.layer_end; ++layer) {
    for (int64_t page = extent.page_begin; page < extent.page_end; ++page) {
      page_announced_[at(layer, page)] = true;
      ++announced_pages_;
    }
  }
  segments_.push_back(extent);
  checksums_.push_back(extent.checksum);
  return header.segment_index;
}

std::vector<transport::ReceiveRun> SegmentLedger::Runs(uint32_t segment_index) const {
  const SegmentExtent& extent = segments_[segment_index];
  std::vector<transport::ReceiveRun> runs;
  for (int64_t layer = extent.layer_begin; layer < extent.layer_end; ++layer) {
    runs.push_back(transport::ReceiveRun{
        .offset = geometry_.offset(layer, extent.page_begin),
        .size_bytes = (extent.page_end - extent.page_begin) * geometry_.page_bytes});
  }
  return runs;
}

void SegmentLedger::MarkLanded(uint32_t segment_index) {
  BATON_CHECK(!segments_[segment_index].landed);
  segments_[segment_index].landed = true;
  ++landed_;
}

absl::Status SegmentLedger::CheckCommit(const worker::v1::Commit& commit) const {
  if (commit.segments() != segments_.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "commit of ", commit.segments(), " segments; ", segments_.size(), " were announced"));
  }
  if (commit.payload_bytes() != static_cast<uint64_t>(payload_bytes())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "commit of ", commit.payload_bytes(), " bytes; ", payload_bytes(), " were announced"));
  }
  const int64_t pages = geometry_.layers * geometry_.pages_per_layer;
  if (announced_pages_ != pages) {
    return absl::InvalidArgumentError(
        absl::StrCat("commit with ", announced_pages_, " of the prompt's ", pages, " pages"));
  }
  if (commit.digest() != kv::DigestOfChecksums(checksums_)) {
    return absl::DataLossError("commit: the digest over the segment checksums does not match");
  }
  return absl::OkStatus();
}

}  // namespace baton::handoff
