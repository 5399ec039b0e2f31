#include "common/kv/codec/diffkv/diffkv_device_arrays.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/kv/codec/block_cache.h"
#include "common/kv/pool/page_pool.h"
#include "kernels/core/carver.h"
#include "kernels/core/memory.h"
#include "kernels/kv_format/unobserved_range.h"
#include "kernels/ops/diffkv_params.h"

namespace baton::kv {
namespace {

// `block`, taken if it is not yet.
absl::StatusOr<float*> Floats(BlockCache& blocks, size_t floats, BlockCache::Block& block) {
  if (block.empty()) {
    BATON_ASSIGN_OR_RETURN(block, blocks.Take(floats * sizeof(float)));
  }
  return block.as<float>();
}

}  // namespace

DiffKvDeviceArrays::KeptArrays DiffKvDeviceArrays::CarveKept(const DiffKvArraySizes& sizes,
                                                             kernels::Carver& carver) {
  const int64_t tables = int64_t{sizes.layers} * sizes.kv_heads;
  return {.lease = carver.Take<kernels::DiffKvLease>(1),
          .token_counts = carver.Take<int32_t>(sizes.counts()),
          .unobserved = carver.Take<kernels::UnobservedRange>(sizes.unobserved),
          .actions = carver.Take<kernels::DiffKvAction>(tables),
          .lease_ids = carver.Take<PageId>(sizes.lease_ids),
          .page_table = carver.Take<PageId>(tables * sizes.columns),
          .probabilities = carver.Take<float>(sizes.kv_heads * sizes.probability_stride)};
}

absl::StatusOr<std::unique_ptr<DiffKvDeviceArrays>> DiffKvDeviceArrays::Allocate(
    BlockCache& blocks, const DiffKvArraySizes& sizes) {
  std::unique_ptr<DiffKvDeviceArrays> arrays(new DiffKvDeviceArrays(sizes));
  kernels::Carver counter(nullptr);
  CarveKept(sizes, counter);
  BATON_ASSIGN_OR_RETURN(arrays->kept_, blocks.Take(counter.used()));
  kernels::Carver carver(arrays->kept_.data());
  arrays->kept_arrays_ = CarveKept(sizes, carver);
  const auto floats =
      static_cast<size_t>(sizes.scores() + sizes.row_lses + sizes.stored_probabilities);
  const auto classes = static_cast<size_t>(int64_t{sizes.kv_heads} * sizes.prompt_tokens);
  BATON_ASSIGN_OR_RETURN(
      arrays->prompt_,
      blocks.Take(floats * sizeof(float) + classes * sizeof(kernels::DiffKvClass)));
  return arrays;
}

absl::Status DiffKvDeviceArrays::Fill(kernels::MemorySpace& space,
                                      std::span<const int32_t> token_counts,
                                      std::span<const PageId> lease_ids,
                                      std::span<const kernels::UnobservedRange> unobserved,
                                      std::span<const PageId> page_table) const {
  BATON_CHECK(static_cast<int64_t>(token_counts.size()) == sizes_.counts());
  BATON_CHECK(static_cast<int64_t>(lease_ids.size()) <= sizes_.lease_ids);
  BATON_CHECK(std::cmp_less_equal(unobserved.size(), sizes_.unobserved));
  // What page tables have no pages of, and probabilities, are written before they are read.
  const size_t ids_place = PlaceOf(kept_arrays_.lease_ids);
  std::vector<std::byte> begin(ids_place + lease_ids.size_bytes());
  const kernels::DiffKvLease lease = {
      .ids = kept_arrays_.lease_ids, .count = static_cast<int32_t>(lease_ids.size()), .used = 0};
  std::memcpy(begin.data(), &lease, sizeof(lease));
  std::memcpy(begin.data() + PlaceOf(kept_arrays_.token_counts),
              token_counts.data(),
              token_counts.size_bytes());
  std::memcpy(
      begin.data() + PlaceOf(kept_arrays_.unobserved), unobserved.data(), unobserved.size_bytes());
  std::memcpy(begin.data() + ids_place, lease_ids.data(), lease_ids.size_bytes());
  BATON_RETURN_IF_ERROR(space.Upload(kept_.data(), begin.data(), begin.size()));
  if (!page_table.empty()) {
    BATON_RETURN_IF_ERROR(space.Upload(kept_.data() + PlaceOf(kept_arrays_.page_table),
                                       page_table.data(),
                                       page_table.size_bytes()));
  }
  return prompt_.empty()
             ? absl::OkStatus()
             : space.Zero(prompt_.data(), static_cast<size_t>(sizes_.scores()) * sizeof(float));
}

absl::Status DiffKvDeviceArrays::LimitLease(kernels::MemorySpace& space, int32_t count) const {
  return space.Upload(kept_.data() + offsetof(kernels::DiffKvLease, count), &count, sizeof(count));
}

absl::Status DiffKvDeviceArrays::Fetch(kernels::MemorySpace& space,
                                       std::span<int32_t> token_counts,
                                       int32_t& lease_used) const {
  BATON_CHECK(static_cast<int64_t>(token_counts.size()) == sizes_.counts());
  const size_t counts_place = PlaceOf(kept_arrays_.token_counts);
  std::vector<std::byte> begin(counts_place + token_counts.size_bytes());
  BATON_RETURN_IF_ERROR(space.Download(begin.data(), kept_.data(), begin.size()));
  kernels::DiffKvLease lease;
  std::memcpy(&lease, begin.data(), sizeof(lease));
  std::memcpy(token_counts.data(), begin.data() + counts_place, token_counts.size_bytes());
  lease_used = lease.used;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<PageId>> DiffKvDeviceArrays::FetchPageTable(
    kernels::MemorySpace& space) const {
  std::vector<PageId> page_table(static_cast<size_t>(sizes_.layers) *
                                 static_cast<size_t>(sizes_.kv_heads) *
                                 static_cast<size_t>(sizes_.columns));
  BATON_RETURN_IF_ERROR(space.Download(
      page_table.data(), kept_arrays_.page_table, page_table.size() * sizeof(PageId)));
  return page_table;
}

void DiffKvDeviceArrays::ForgetPrompt() {
  prompt_ = {};
  shared_ = {};
  own_ = {};
}

absl::StatusOr<float*> DiffKvDeviceArrays::SharedProbabilities(BlockCache& blocks, size_t floats) {
  return Floats(blocks, floats, shared_);
}

absl::StatusOr<float*> DiffKvDeviceArrays::OwnProbabilities(BlockCache& blocks, size_t floats) {
  return Floats(blocks, floats, own_);
}

}  // namespace baton::kv
