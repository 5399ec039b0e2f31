#include "common/kv/manifest/head_range.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "common/kv/manifest/reason.h"
#include "kernels/kv_format/dense.h"

namespace baton::kv {
namespace {

// More than any machine has; the number comes from a peer.
constexpr int64_t kMaxRanks = 1024;

}  // namespace

absl::StatusOr<std::vector<HeadRange>> HeadsOfRanks(int64_t kv_heads, int64_t ranks) {
  if (kv_heads < 1 || ranks < 1 || ranks > kMaxRanks ||
      (kv_heads % ranks != 0 && ranks % kv_heads != 0)) {
    return FailedPreconditionWithReason(
        kLayoutMismatch,
        absl::StrCat(kv_heads,
                     " KV heads can't be divided among ",
                     ranks,
                     " tensor-parallel ranks: one number must be a multiple of the other"));
  }
  const int64_t heads = std::max<int64_t>(1, kv_heads / ranks);  // of a rank
  std::vector<HeadRange> ranges;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const int64_t begin = rank * kv_heads / ranks;
    ranges.push_back(HeadRange{.begin = static_cast<int32_t>(begin),
                               .end = static_cast<int32_t>(begin + heads)});
  }
  return ranges;
}

absl::Status CheckRanks(int64_t kv_heads, int64_t sender_ranks, int64_t receiver_ranks) {
  BATON_RETURN_IF_ERROR(HeadsOfRanks(kv_heads, sender_ranks).status());
  BATON_RETURN_IF_ERROR(HeadsOfRanks(kv_heads, receiver_ranks).status());
  if (receiver_ranks != 1) {
    return FailedPreconditionWithReason(
        kLayoutMismatch,
        absl::StrCat("a decode worker whose KV heads are divided over ",
                     receiver_ranks,
                     " tensor-parallel ranks: only one that holds all heads can be shipped to"));
  }
  return absl::OkStatus();
}

std::vector<PagePiece> PiecesOfHeads(const kernels::DensePageLayout& page, const HeadRange& heads) {
  std::vector<PagePiece> pieces;
  const auto add = [&pieces](size_t begin, size_t end) {
    pieces.push_back(PagePiece{.offset = static_cast<int64_t>(begin),
                               .size_bytes = static_cast<int64_t>(end - begin)});
  };
  add(page.key_offset(heads.begin, 0), page.key_offset(heads.end, 0));
  add(page.value_offset(heads.begin, 0), page.value_offset(heads.end, 0));
  if (page.has_scales()) {
    add(page.key_scale_offset(heads.begin, 0), page.key_scale_offset(heads.end, 0));
    add(page.value_scale_offset(heads.begin, 0), page.value_scale_offset(heads.end, 0));
  }
  return pieces;
}

int64_t TotalBytes(std::span<const PagePiece> pieces) {
  int64_t bytes = 0;
  for (const PagePiece& piece : pieces) {
    bytes += piece.size_bytes;
  }
  return bytes;
}

}  // namespace baton::kv
