#include "common/kv/codec/diffkv/diffkv_codec.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "common/base/status_macros.h"
#include "common/kv/codec/block_cache.h"
#include "common/kv/codec/codec_context.h"
#include "common/kv/codec/diffkv/diffkv_decode_rows.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/pool/page_pool.h"
#include "kernels/core/memory.h"
#include "kernels/core/side_queues.h"
#include "kernels/core/step_arrays.h"
#include "kernels/kv_format/diffkv.h"

namespace baton::kv {

DiffKvCodec::DiffKvCodec(const CodecContext& context,
                         PagePool& pool,
                         BlockCache& blocks,
                         kernels::DiffKvTier high,
                         kernels::DiffKvTier low)
    : context_(context),
      pool_(pool),
      blocks_(blocks),
      geometry_({.kv_heads = context.dimensions.kv_heads,
                 .head_dim = context.dimensions.head_dim,
                 .tiers = {high, low}}) {}

int32_t DiffKvCodec::PagesOf(std::span<const int32_t> counts) const {
  int32_t pages = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    pages += geometry_.pages_for(static_cast<int32_t>(i % kernels::kDiffKvTiers), counts[i]);
  }
  return pages;
}

EncodedLayer DiffKvCodec::LayerOf(std::span<const PageId> ids) const {
  const auto pieces = pool_.Pieces(ids, geometry_.page_bytes());
  return {.pages = static_cast<int32_t>(ids.size()), .memory = {pieces.begin(), pieces.end()}};
}

absl::StatusOr<float*> DiffKvCodec::Scratch(size_t floats) {
  const size_t bytes = floats * sizeof(float);
  if (scratch_.size() < bytes) {
    const size_t grown = std::max(bytes, 2 * scratch_.size());
    scratch_ = {};
    BATON_ASSIGN_OR_RETURN(scratch_, context_.exec.memory->Allocate(grown));
  }
  return scratch_.as<float>();
}

absl::StatusOr<kernels::ExecContext> DiffKvCodec::ExecToEncode(int32_t turn) const {
  kernels::SideQueues* const side = context_.exec.side;
  return side == nullptr ? context_.exec
                         : side->Fork(context_.exec, kernels::SideRank::kFirst, turn);
}

absl::Status DiffKvCodec::AwaitEncoding(int32_t turn) const {
  kernels::SideQueues* const side = context_.exec.side;
  return side == nullptr ? absl::OkStatus() : side->Await(turn);
}

// Scratch grows here rather than between the ops of a step.
absl::StatusOr<std::unique_ptr<DecodeRows>> DiffKvCodec::Prepare(std::span<const DecodeRow> rows,
                                                                 kernels::StepArrays& arrays) {
  auto prepared = std::make_unique<DiffKvDecodeRows>(*this, rows, arrays);
  BATON_RETURN_IF_ERROR(Scratch(prepared->scratch_floats()).status());
  return prepared;
}

}  // namespace baton::kv
