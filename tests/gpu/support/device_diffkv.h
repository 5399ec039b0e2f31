// Sequences in format `diffkv` on the device, with their twins on the host for comparison.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/core/exec_context.h"
#include "kernels/kv_format/unobserved_range.h"
#include "kernels/ops/diffkv_params.h"
#include "kernels/ops/op_table.h"
#include "tests/gpu/support/gpu_test.h"
#include "tests/kernels/support/diffkv_problem.h"

namespace baton::kernels::cuda {

// A policy whose ranges are on the device.
class DevicePolicy {
 public:
  explicit DevicePolicy(const DiffKvPolicy& policy);

  // Names memory of this object.
  DiffKvPolicy get() const;

 private:
  DiffKvPolicy policy_;
  DeviceArray<UnobservedRange> unobserved_;
};

// Dense pages and score sums of a prompt, uploaded.
class DeviceDiffKvPrompt {
 public:
  explicit DeviceDiffKvPrompt(DiffKvPrompt& prompt);

  int32_t tokens() const { return tokens_; }
  DensePages pages() const;
  const int32_t* table() const { return table_.data(); }
  const float* scores() const { return scores_.data(); }

 private:
  int32_t tokens_;
  DensePageLayout layout_;
  DeviceArray<std::byte> dense_;
  DeviceArray<int32_t> table_;
  DeviceArray<float> scores_;
};

// A copy of a host's cache on the device: pool, page table, counts, lease, actions and
// probabilities. Transfers wait for themselves, not for a queue: its work must be done before
// (GpuTest::Wait).
class DeviceDiffKvCache {
 public:
  explicit DeviceDiffKvCache(DiffKvCache& cache);

  // Makes the device's copy equal to the host's, of the same shape and size.
  void Upload(DiffKvCache& cache) const;
  // The inverse; `cache` keeps its classes.
  void Download(DiffKvCache& cache) const;

  DiffKvLayer layer() const;
  DiffKvPages pages() const;
  DiffKvLease* lease() const { return lease_.data(); }
  DiffKvAction* actions() const { return actions_.data(); }
  float* probabilities() const { return probabilities_.data(); }  // [kv_heads][max_tokens]

  // Classifies, assigns pages and encodes, then waits. Returns the classes.
  std::vector<DiffKvClass> Load(const OpTable& ops,
                                const ExecContext& context,
                                const DeviceDiffKvPrompt& prompt,
                                const DiffKvPolicy& policy) const;

 private:
  DiffKvGeometry geometry_;
  int32_t columns_;
  DeviceArray<int32_t> table_;
  DeviceArray<int32_t> counts_;
  DeviceArray<int32_t> ids_;
  DeviceArray<DiffKvLease> lease_;
  DeviceArray<DiffKvAction> actions_;
  DeviceArray<std::byte> pool_;
  DeviceArray<float> probabilities_;
};

// Tokens to append to caches on the device, one behind the other. Keys and values are those that
// DiffKvCache::Append takes for the same seeds.
class DeviceDiffKvTokens {
 public:
  DeviceDiffKvTokens(const DiffKvGeometry& geometry, const std::vector<uint32_t>& seeds);

  // Without rows and pages.
  DiffKvAppendParams params() const;

 private:
  int64_t stride_;
  DeviceArray<uint16_t> k_;
  DeviceArray<uint16_t> v_;
};

// The row that appends token `token` to a cache; it borrows both.
DiffKvAppendRow DeviceAppendRow(int32_t token,
                                const DeviceDiffKvCache& cache,
                                const DevicePolicy& policy,
                                int32_t position,
                                bool sweep);

}  // namespace baton::kernels::cuda
