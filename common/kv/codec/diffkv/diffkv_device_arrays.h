// What ops read and write of a sequence in format `diffkv`, besides its pages, on a device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/kv/codec/block_cache.h"
#include "common/kv/pool/page_pool.h"
#include "kernels/core/carver.h"
#include "kernels/core/memory.h"
#include "kernels/kv_format/unobserved_range.h"
#include "kernels/ops/diffkv_params.h"

namespace baton::kv {

// Sizes of the arrays of one sequence.
struct DiffKvArraySizes {
  int32_t layers = 0;
  int32_t kv_heads = 0;
  int32_t columns = 0;             // of a head's page table
  int64_t lease_ids = 0;           // pages of the sequence
  int64_t prompt_tokens = 0;       // that are scored and classified here
  int64_t probability_stride = 0;  // tokens that a head may come to store
  int64_t unobserved = 2;          // ranges: one of the prompt, one of what is generated
  // Floats that an extension needs besides: log-sum-exps of its rows, and probabilities of stored
  // tokens that layers share.
  int64_t row_lses = 0;
  int64_t stored_probabilities = 0;

  int64_t counts() const { return int64_t{layers} * kv_heads * kernels::kDiffKvTiers; }
  int64_t scores() const { return int64_t{layers} * kv_heads * prompt_tokens; }
};

// Memory that only ops may look at. Accessors are valid from the start, contents from Fill on.
// Executor thread, but for Allocate, ForgetPrompt and the end.
class DiffKvDeviceArrays {
 public:
  // kResourceExhausted when the device has no memory for them.
  static absl::StatusOr<std::unique_ptr<DiffKvDeviceArrays>> Allocate(
      BlockCache& blocks, const DiffKvArraySizes& sizes);

  // A sequence of so many tokens by layer, head and tier, without scores, with all of `lease_ids`
  // to take pages from. `page_table`: of those that the tokens have; empty if they have none yet.
  absl::Status Fill(kernels::MemorySpace& space,
                    std::span<const int32_t> token_counts,
                    std::span<const PageId> lease_ids,
                    std::span<const kernels::UnobservedRange> unobserved,
                    std::span<const PageId> page_table) const;
  // Only the first `count` ids may be taken from now on.
  absl::Status LimitLease(kernels::MemorySpace& space, int32_t count) const;
  // Waits for the ops before, then reads the token counts and how much of the lease is used.
  absl::Status Fetch(kernels::MemorySpace& space,
                     std::span<int32_t> token_counts,
                     int32_t& lease_used) const;
  // Likewise the page tables, [layers][kv_heads][columns].
  absl::StatusOr<std::vector<PageId>> FetchPageTable(kernels::MemorySpace& space) const;
  // Gives back what only a prompt that is computed needs.
  void ForgetPrompt();
  // Room for what several layers that share a cache observe, `floats` of them; the same each time.
  absl::StatusOr<float*> SharedProbabilities(BlockCache& blocks, size_t floats);
  // The same for what a layer of its own observes.
  absl::StatusOr<float*> OwnProbabilities(BlockCache& blocks, size_t floats);

  kernels::DiffKvLease* lease() const { return kept_arrays_.lease; }
  int32_t* token_counts() const { return kept_arrays_.token_counts; }
  kernels::UnobservedRange* unobserved() const { return kept_arrays_.unobserved; }
  // [layers][kv_heads].
  kernels::DiffKvAction* actions() const { return kept_arrays_.actions; }
  int32_t* page_table() const { return kept_arrays_.page_table; }
  float* probabilities() const { return kept_arrays_.probabilities; }
  // Of the prompt or extension, until ForgetPrompt.
  float* scores() const { return prompt_.as<float>(); }
  float* row_lses() const { return scores() + sizes_.scores(); }
  float* stored_probabilities() const { return row_lses() + sizes_.row_lses; }
  kernels::DiffKvClass* classes() const {
    return reinterpret_cast<kernels::DiffKvClass*>(stored_probabilities() +
                                                   sizes_.stored_probabilities);
  }

 private:
  // The arrays of `kept_`. The lease is first, then the counts: both are read back.
  struct KeptArrays {
    kernels::DiffKvLease* lease = nullptr;
    int32_t* token_counts = nullptr;
    kernels::UnobservedRange* unobserved = nullptr;
    kernels::DiffKvAction* actions = nullptr;
    PageId* lease_ids = nullptr;
    PageId* page_table = nullptr;
    float* probabilities = nullptr;
  };

  explicit DiffKvDeviceArrays(const DiffKvArraySizes& sizes) : sizes_(sizes) {}
  static KeptArrays CarveKept(const DiffKvArraySizes& sizes, kernels::Carver& carver);
  // Bytes from the beginning of `kept_` to an array of it.
  size_t PlaceOf(const void* array) const {
    return static_cast<size_t>(static_cast<const std::byte*>(array) - kept_.data());
  }

  const DiffKvArraySizes sizes_;
  BlockCache::Block kept_;
  KeptArrays kept_arrays_;
  BlockCache::Block prompt_;  // scores, row_lses, stored_probabilities, classes
  BlockCache::Block shared_;
  BlockCache::Block own_;
};

}  // namespace baton::kv
