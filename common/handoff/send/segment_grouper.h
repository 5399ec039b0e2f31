// Joins layers into segments that are large enough to ship.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "common/base/pieces.h"
#include "common/engine/kv_sink.h"
#include "common/kv/manifest/layout.h"
#include "kernels/core/landing_memory.h"

namespace baton::handoff {

// A run of layers, or the hidden states behind them, with the same page range. `memory` is
// [layer_count][page_count] pages, in pieces.
struct Segment {
  int32_t layer_begin = 0;
  int32_t layer_count = 0;
  int32_t page_begin = 0;
  int32_t page_count = 0;
  std::vector<std::span<const std::byte>> memory{};
  kernels::LandingMemory* device = nullptr;  // as ReadyKv::device
  bool encoded = false;                      // as ReadyKv::encoded

  int64_t payload_bytes() const { return static_cast<int64_t>(BytesOf(memory)); }
};

// Groups layers until a segment has segment_bytes, or its prefill chunk has no more layers. A
// prefill chunk that has fewer bytes over all its layers is not grouped: its layers ship as they
// come, while later ones compute. Not thread-safe.
class SegmentGrouper {
 public:
  explicit SegmentGrouper(const kv::WindowGeometry& geometry) : geometry_(geometry) {}

  // Segments that are complete now, in order. kInternal when `ready` does not fit the geometry.
  absl::StatusOr<std::vector<Segment>> Add(const engine::ReadyKv& ready, int64_t segment_bytes);
  // What is left.
  std::optional<Segment> Flush();
  // Whether anything is.
  bool has_rest() const { return pending_.has_value(); }
  // Whether that is encoded layers.
  bool rest_is_encoded() const { return pending_.has_value() && pending_->encoded; }

 private:
  absl::Status Check(const engine::ReadyKv& ready) const;
  bool Continues(const engine::ReadyKv& ready) const;

  const kv::WindowGeometry geometry_;
  std::optional<Segment> pending_;
};

}  // namespace baton::handoff
