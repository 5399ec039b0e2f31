// Decode attention over static, exact and selected tokens: op `shadowkv_attention`.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/core/exec_context.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/ops/shadowkv_params.h"
#include "tests/gpu/bench/bench_case.h"
#include "tests/gpu/bench/device_arena.h"
#include "tests/gpu/bench/query_rows.h"
#include "tests/gpu/bench/shadowkv_load.h"
#include "tests/gpu/bench/shadowkv_pool.h"

namespace baton::kernels::cuda {

// All rows of a layer in one call, each with a cache.
class ShadowKvAttentionCase : public BenchCase {
 public:
  // Of the chunks of a call, `hit_share` are those of the call before in the same layer.
  ShadowKvAttentionCase(const BenchShape& shape, double hit_share, const ShadowKvCodes& codes = {});

  absl::Status Prepare(const DeviceQueue& queue) override;
  // Of the second call; before any Run. kInternal if the calls find another number of hits than
  // wanted.
  absl::StatusOr<double> Error(const ExecContext& context) override;
  absl::Status Run(const ExecContext& context, int32_t layer, int32_t step) override;
  // ShadowKvLoad::attention_bytes.
  double bytes() const override;
  double link_bytes() const override { return load_.link_bytes(hits_); }

 private:
  absl::Status CheckHits() const;
  const int32_t* Ids(int32_t layer, int32_t step) const;

  ShadowKvLoad load_;
  int64_t hits_;  // chunks of a KV head
  ShadowKvPool pool_;
  QueryRows queries_;
  DeviceArena arena_;
  const int32_t* ids_ = nullptr;  // ShadowKvChunkLists::ids
  double missed_chunks_ = 0.0;    // ShadowKvChunkLists::missed_chunks
};

}  // namespace baton::kernels::cuda
