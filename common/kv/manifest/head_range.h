// KV heads as tensor-parallel ranks divide them, and where a range of them lies in a page.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/kv_format/dense.h"

namespace baton::kv {

// Heads [begin, end) of a model.
struct HeadRange {
  int32_t begin = 0;
  int32_t end = 0;

  bool operator==(const HeadRange&) const = default;
};

// Tensor-parallel ranks over which a worker's KV heads are divided: its pages hold all heads.
inline constexpr uint32_t kWorkerRanks = 1;

// The heads of each of `ranks`: equal ranges, in order. Where a model has fewer heads than there
// are ranks, several hold the same one. kFailedPrecondition (LAYOUT_MISMATCH) where neither number
// divides the other.
absl::StatusOr<std::vector<HeadRange>> HeadsOfRanks(int64_t kv_heads, int64_t ranks);

// Whether KV may be handed from a prefill worker of `sender_ranks` to a decode worker of
// `receiver_ranks`, to be known before any request: kFailedPrecondition (LAYOUT_MISMATCH) where
// either can't divide the heads. Today's workers ship whole pages to one receiver, and land any
// ranges, so a receiver is one rank.
absl::Status CheckRanks(int64_t kv_heads, int64_t sender_ranks, int64_t receiver_ranks);

// Bytes [offset, offset + size) of a page.
struct PagePiece {
  int64_t offset = 0;
  int64_t size_bytes = 0;

  bool operator==(const PagePiece&) const = default;
};

// Where `heads` of a page lie, ascending: keys, values and, if there are any, their scales.
std::vector<PagePiece> PiecesOfHeads(const kernels::DensePageLayout& page, const HeadRange& heads);

// Bytes of all of them.
int64_t TotalBytes(std::span<const PagePiece> pieces);

}  // namespace baton::kv
