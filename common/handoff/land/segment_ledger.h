// Which pages of a reservation an attempt has announced and landed.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/engine/request.h"
#include "common/kv/manifest/head_range.h"
#include "common/kv/manifest/layout.h"
#include "common/kv/manifest/segment_header.h"
#include "common/transport/transport.h"
#include "proto/baton/kv/v1/manifest.pb.h"
#include "proto/baton/worker/v1/kv_transfer.pb.h"

namespace baton::handoff {

// What one segment covers: of sections [layer_begin, layer_end), pages [page_begin, page_end), in
// these `heads`, which are all where pages are not divided.
struct SegmentExtent {
  int64_t layer_begin = 0;
  int64_t layer_end = 0;
  int64_t page_begin = 0;
  int64_t page_end = 0;
  kv::HeadRange heads;
  uint64_t checksum = 0;
  bool landed = false;
};

// Checks every header of an attempt against its manifest, its reservation and the headers before
// it. A layer may come in any partition of its heads into ranges, as tensor-parallel ranks would
// send it; a commit stands only when all of them are there. No number from outside is used before
// it was compared with the reservation's own. Not thread-safe.
class SegmentLedger {
 public:
  SegmentLedger(const kv::v1::KvManifest& manifest,
                const kv::WindowGeometry& geometry,
                int32_t max_segments);

  // The index of the announced segment. kFailedPrecondition: another epoch or attempt, or an
  // unknown format version; kInvalidArgument: anything else that is wrong; kResourceExhausted: too
  // many.
  absl::StatusOr<uint32_t> Announce(const kv::SegmentHeader& header);
  // Window runs of a segment in payload order.
  std::vector<transport::ReceiveRun> Runs(uint32_t segment_index) const;

  // The segment's bytes are in place and have this checksum; kDataLoss when its header says
  // another.
  absl::Status MarkLanded(uint32_t segment_index, uint64_t checksum);
  bool all_landed() const { return landed_ == segments_.size(); }
  // The pages of a segment, if they are pages of layers, not of hidden states, in all their heads.
  std::optional<engine::LandedPages> PagesOf(uint32_t segment_index) const;
  // How many pages of hidden states, from the first one on, are in place.
  int32_t hidden_landed() const;
  // Whether the commit agrees with what was announced and covers the whole prompt.
  // kInvalidArgument: counts or coverage; kDataLoss: the digest.
  // `sent_pages`: pages of each section that the format says were sent.
  absl::Status CheckCommit(const worker::v1::Commit& commit,
                           const std::vector<int32_t>& sent_pages) const;

  int64_t segments() const { return static_cast<int64_t>(segments_.size()); }
  int64_t payload_bytes() const { return payload_bytes_; }

 private:
  absl::Status CheckIdentity(const kv::SegmentHeader& header) const;
  absl::Status CheckHeads(const kv::SegmentHeader& header) const;
  absl::StatusOr<SegmentExtent> CheckExtent(const kv::SegmentHeader& header) const;
  // Parts of a page that are announced by themselves: its heads, or 1 where pages are not divided.
  int64_t parts() const { return geometry_.divided.has_value() ? geometry_.kv_heads : 1; }
  // Those of the extent in a page of `layer`, as positions in part_announced_.
  std::pair<size_t, size_t> PartsOf(const SegmentExtent& extent, int64_t layer, int64_t page) const;

  const uint64_t reservation_id_;
  const uint64_t epoch_;
  const uint32_t attempt_;
  const std::optional<kv::WireFormat> format_;
  const uint32_t format_version_;
  const kv::WindowGeometry geometry_;
  const int32_t max_segments_;
  std::vector<SegmentExtent> segments_;
  std::vector<uint64_t> checksums_;
  std::vector<bool> part_announced_;       // by page of the window, then part
  std::vector<int64_t> layer_page_end_;    // by section: behind the last announced page
  std::vector<int64_t> layer_part_count_;  // by section: announced parts of pages
  int64_t payload_bytes_ = 0;              // announced
  size_t landed_ = 0;
};

}  // namespace baton::handoff
