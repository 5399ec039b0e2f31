// A prompt that was encoded by another worker: what is told of it, and how its pages are taken
// over.
#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "common/kv/codec/diffkv/diffkv_sequence.h"
#include "common/kv/codec/kv_calibration.h"
#include "common/kv/pool/page_pool.h"
#include "kernels/kv_format/diffkv.h"
#include "kernels/ops/diffkv_params.h"

namespace baton::kv {
namespace {

constexpr size_t kCountBytes = 4;

void AppendU32(uint32_t value, std::string& out) {
  for (int shift = 0; shift < 32; shift += 8) {
    out.push_back(static_cast<char>((value >> shift) & 0xffu));
  }
}

uint32_t ReadU32(std::string_view bytes) {
  uint32_t value = 0;
  for (size_t i = 0; i < kCountBytes; ++i) {
    value |= static_cast<uint32_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  }
  return value;
}

}  // namespace

// Token counts, u32 little-endian: [layers][kv_heads][tiers].
std::string DiffKvSequence::State() const {
  std::string state;
  state.reserve(token_counts_.size() * kCountBytes);
  for (const int32_t count : token_counts_) {
    AppendU32(static_cast<uint32_t>(count), state);
  }
  return state;
}

absl::Status DiffKvSequence::CheckPages(std::span<const int32_t> counts) const {
  const auto per_layer = static_cast<size_t>(kv_heads_) * kernels::kDiffKvTiers;
  for (size_t begin = 0; begin < counts.size(); begin += per_layer) {
    const int32_t pages = codec_.PagesOf(counts.subspan(begin, per_layer));
    if (pages > plan_.prompt_pages_per_layer) {
      return absl::InvalidArgumentError(absl::StrCat("diffkv state: ",
                                                     pages,
                                                     " pages of a layer; there is room for ",
                                                     plan_.prompt_pages_per_layer));
    }
  }
  return absl::OkStatus();
}

// A sender with the same floors left no token of a layer below its own.
absl::Status DiffKvSequence::CheckFloors(std::span<const int32_t> counts, int32_t layers) const {
  const auto heads = static_cast<size_t>(kv_heads_);
  for (size_t head = 0; head < static_cast<size_t>(layers) * heads; ++head) {
    const auto kv_layer = static_cast<int32_t>(head / heads);
    const int32_t high = counts[2 * head];
    const int64_t kept =
        int64_t{high} + (floor(kv_layer) == KvFloor::kHigh ? 0 : counts[2 * head + 1]);
    if (floor(kv_layer) != KvFloor::kNone && kept != prompt_tokens_) {
      return absl::InvalidArgumentError(
          absl::StrCat("diffkv state: layer ",
                       kv_layer,
                       " has ",
                       kept,
                       " tokens at or above its floor; the prompt has ",
                       prompt_tokens_));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> DiffKvSequence::ReadState(std::string_view state,
                                                               int32_t layers) const {
  if (state.size() != token_counts_.size() * kCountBytes) {
    return absl::InvalidArgumentError(absl::StrCat("diffkv state of ",
                                                   state.size(),
                                                   " bytes; token counts take ",
                                                   token_counts_.size() * kCountBytes));
  }
  std::vector<int32_t> counts;
  counts.reserve(token_counts_.size());
  for (size_t i = 0; i < token_counts_.size(); ++i) {
    const uint32_t count = ReadU32(state.substr(i * kCountBytes, kCountBytes));
    if (count > static_cast<uint64_t>(prompt_tokens_)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "diffkv state: ", count, " tokens in a tier; the prompt has ", prompt_tokens_));
    }
    counts.push_back(static_cast<int32_t>(count));
  }
  for (size_t head = 0; head < counts.size() / kernels::kDiffKvTiers; ++head) {
    const int64_t tokens = int64_t{counts[2 * head]} + counts[2 * head + 1];
    if (tokens > prompt_tokens_) {
      return absl::InvalidArgumentError(absl::StrCat(
          "diffkv state: ", tokens, " tokens in a head; the prompt has ", prompt_tokens_));
    }
  }
  BATON_RETURN_IF_ERROR(CheckPages(counts));
  BATON_RETURN_IF_ERROR(CheckFloors(counts, layers));
  const size_t sent =
      static_cast<size_t>(layers) * static_cast<size_t>(kv_heads_) * kernels::kDiffKvTiers;
  if (std::any_of(counts.begin() + static_cast<ptrdiff_t>(sent), counts.end(), [](int32_t count) {
        return count != 0;
      })) {
    return absl::InvalidArgumentError(
        absl::StrCat("diffkv state: tokens in layers behind the ", layers, " that are sent"));
  }
  return counts;
}

absl::StatusOr<std::vector<int32_t>> DiffKvSequence::SentPages(std::string_view state,
                                                               int32_t layers) const {
  BATON_ASSIGN_OR_RETURN(const std::vector<int32_t> counts, ReadState(state, layers));
  const size_t per_layer = static_cast<size_t>(kv_heads_) * kernels::kDiffKvTiers;
  std::vector<int32_t> pages;
  for (size_t begin = 0; begin < static_cast<size_t>(layers) * per_layer; begin += per_layer) {
    pages.push_back(codec_.PagesOf(std::span(counts).subspan(begin, per_layer)));
  }
  return pages;
}

std::span<const PageId> DiffKvSequence::WindowIds(int32_t kv_layer) const {
  const auto pages = static_cast<size_t>(plan_.prompt_pages_per_layer);
  return std::span(owned_).subspan(static_cast<size_t>(kv_layer) * pages, pages);
}

std::vector<std::span<std::byte>> DiffKvSequence::Window(int32_t kv_layer, int32_t pages) {
  return codec_.pool().Pieces(WindowIds(kv_layer).first(static_cast<size_t>(pages)),
                              codec_.geometry().page_bytes());
}

absl::Status DiffKvSequence::Adopt(std::string_view state, int32_t layers) {
  BATON_ASSIGN_OR_RETURN(token_counts_, ReadState(state, layers));
  // Page k of a layer was written to page k of its part of the window, so what the layers take are
  // the first pages of each part. On a device they take them from the lease when a step begins.
  landed_ = device_ != nullptr;
  std::vector<PageId> free;
  free.reserve(owned_.size());
  lease_ids_.clear();
  for (int32_t kv_layer = 0; kv_layer < layers_; ++kv_layer) {
    const std::span<const PageId> ids = WindowIds(kv_layer);
    const auto first_free = ids.begin() + codec_.PagesOf(TierTokens(kv_layer));
    if (!landed_) {
      BATON_RETURN_IF_ERROR(AssignLanded(kv_layer));
    } else {
      lease_ids_.insert(lease_ids_.end(), ids.begin(), first_free);
      if (kv_layer < layers) {
        coded_.push_back(kv_layer);
      }
    }
    free.insert(free.end(), first_free, ids.end());
  }
  free.insert(free.end(), owned_.begin() + plan_.prompt_pages(), owned_.end());
  lease_.used = static_cast<int32_t>(lease_ids_.size());
  lease_ids_.insert(lease_ids_.end(), free.begin(), free.end());
  PointLease();
  held_.TakeLayers(layers);
  fetched_tokens_ = held_.tokens();
  return absl::OkStatus();
}

// Assigning from the window repeats the sender's scan.
absl::Status DiffKvSequence::AssignLanded(int32_t kv_layer) {
  kernels::DiffKvLease window = {
      .ids = WindowIds(kv_layer).data(), .count = plan_.prompt_pages_per_layer, .used = 0};
  return codec_.context().ops->diffkv_assign_pages(
      codec_.engine_exec(),
      {.geometry = codec_.geometry(), .layer = layer(kv_layer), .lease = &window});
}

// So does assigning from a lease that begins with what the layers take, layer by layer.
absl::Status DiffKvSequence::AssignLandedPages() {
  for (int32_t kv_layer = 0; kv_layer < layers_; ++kv_layer) {
    BATON_RETURN_IF_ERROR(codec_.context().ops->diffkv_assign_pages(
        codec_.context().exec,
        {.geometry = codec_.geometry(), .layer = layer(kv_layer), .lease = op_lease()}));
  }
  return absl::OkStatus();
}

}  // namespace baton::kv
