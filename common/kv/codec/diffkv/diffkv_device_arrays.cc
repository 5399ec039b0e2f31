#include "common/kv/codec/diffkv/diffkv_device_arrays.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/kv/codec/block_cache.h"
#include "common/kv/pool/page_pool.h"
#include "kernels/core/memory.h"
#include "kernels/kv_format/position_range.h"
#include "kernels/ops/diffkv_params.h"

namespace baton::kv {
namespace {

// Of every array in a block.
constexpr size_t kAlignment = 64;

// `bytes` more behind `end`; returns where they begin.
size_t Place(size_t bytes, size_t& end) {
  const size_t begin = (end + kAlignment - 1) / kAlignment * kAlignment;
  end = begin + bytes;
  return begin;
}

}  // namespace

DiffKvDeviceArrays::Places DiffKvDeviceArrays::PlacesOf(const DiffKvArraySizes& sizes) {
  const auto heads = static_cast<size_t>(sizes.kv_heads);
  const size_t tables = static_cast<size_t>(sizes.layers) * heads;
  Places places;
  places.end = sizeof(kernels::DiffKvLease);
  places.counts = Place(static_cast<size_t>(sizes.counts()) * sizeof(int32_t), places.end);
  places.unobserved = Place(sizeof(kernels::PositionRange), places.end);
  places.actions = Place(heads * sizeof(kernels::DiffKvAction), places.end);
  places.lease_ids = Place(static_cast<size_t>(sizes.lease_ids) * sizeof(PageId), places.end);
  places.page_table =
      Place(tables * static_cast<size_t>(sizes.columns) * sizeof(PageId), places.end);
  places.probabilities =
      Place(heads * static_cast<size_t>(sizes.probability_stride) * sizeof(float), places.end);
  return places;
}

absl::StatusOr<std::unique_ptr<DiffKvDeviceArrays>> DiffKvDeviceArrays::Allocate(
    BlockCache& blocks, const DiffKvArraySizes& sizes) {
  const Places places = PlacesOf(sizes);
  std::unique_ptr<DiffKvDeviceArrays> arrays(new DiffKvDeviceArrays(sizes, places));
  BATON_ASSIGN_OR_RETURN(arrays->kept_, blocks.Take(places.end));
  const auto classes = static_cast<size_t>(int64_t{sizes.kv_heads} * sizes.prompt_tokens);
  BATON_ASSIGN_OR_RETURN(arrays->prompt_,
                         blocks.Take(static_cast<size_t>(sizes.scores()) * sizeof(float) +
                                     classes * sizeof(kernels::DiffKvClass)));
  return arrays;
}

absl::Status DiffKvDeviceArrays::Fill(kernels::MemorySpace& space,
                                      std::span<const PageId> lease_ids,
                                      const kernels::PositionRange& unobserved) const {
  BATON_CHECK(static_cast<int64_t>(lease_ids.size()) <= sizes_.lease_ids);
  // Page tables and probabilities are written before they are read.
  std::vector<std::byte> begin(places_.lease_ids + lease_ids.size_bytes());
  const kernels::DiffKvLease lease = {.ids = At<const int32_t>(places_.lease_ids),
                                      .count = static_cast<int32_t>(lease_ids.size()),
                                      .used = 0};
  std::memcpy(begin.data(), &lease, sizeof(lease));
  std::memcpy(begin.data() + places_.unobserved, &unobserved, sizeof(unobserved));
  std::memcpy(begin.data() + places_.lease_ids, lease_ids.data(), lease_ids.size_bytes());
  BATON_RETURN_IF_ERROR(space.Upload(kept_.data(), begin.data(), begin.size()));
  return space.Zero(prompt_.data(), static_cast<size_t>(sizes_.scores()) * sizeof(float));
}

absl::Status DiffKvDeviceArrays::LimitLease(kernels::MemorySpace& space, int32_t count) const {
  return space.Upload(kept_.data() + offsetof(kernels::DiffKvLease, count), &count, sizeof(count));
}

absl::Status DiffKvDeviceArrays::Fetch(kernels::MemorySpace& space,
                                       std::span<int32_t> token_counts,
                                       int32_t& lease_used) const {
  BATON_CHECK(static_cast<int64_t>(token_counts.size()) == sizes_.counts());
  std::vector<std::byte> begin(places_.counts + token_counts.size_bytes());
  BATON_RETURN_IF_ERROR(space.Download(begin.data(), kept_.data(), begin.size()));
  kernels::DiffKvLease lease;
  std::memcpy(&lease, begin.data(), sizeof(lease));
  std::memcpy(token_counts.data(), begin.data() + places_.counts, token_counts.size_bytes());
  lease_used = lease.used;
  return absl::OkStatus();
}

void DiffKvDeviceArrays::ForgetPrompt() {
  prompt_ = {};
  shared_ = {};
}

absl::StatusOr<float*> DiffKvDeviceArrays::SharedProbabilities(BlockCache& blocks, size_t floats) {
  if (shared_.empty()) {
    BATON_ASSIGN_OR_RETURN(shared_, blocks.Take(floats * sizeof(float)));
  }
  return shared_.as<float>();
}

}  // namespace baton::kv
