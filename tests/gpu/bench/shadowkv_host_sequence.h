// A decode step of one sequence of a ShadowKvPool on the CPU back end.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/core/buffer.h"
#include "kernels/ops/shadowkv_params.h"
#include "tests/gpu/bench/shadowkv_load.h"
#include "tests/gpu/bench/shadowkv_pool.h"

namespace baton::kernels::cuda {

// A copy of the sequence in the host's memory, without a cache. The queue must be done when it is
// made.
class ShadowKvHostSequence {
 public:
  static absl::StatusOr<ShadowKvHostSequence> Copy(const ShadowKvPool& pool,
                                                   int32_t layer,
                                                   int32_t row);

  // Chunks for the query q[heads][head_dim], [kv_heads][budget chunks].
  absl::StatusOr<std::vector<int32_t>> Select(const std::vector<float>& q, float scale) const;
  // Attention over these chunks and the exact tokens, [heads][head_dim].
  absl::StatusOr<std::vector<float>> Attend(const std::vector<float>& q,
                                            float scale,
                                            const std::vector<int32_t>& chunk_ids) const;

 private:
  ShadowKvSequence get() const;
  int64_t HeadsOf(const std::vector<float>& q) const;

  ShadowKvLoad load_;
  Buffer prompt_;
  mutable Buffer tail_;
  Buffer value_prompt_;  // of values apart, like the next one
  mutable Buffer value_tail_;
};

}  // namespace baton::kernels::cuda
