// Chunks that the decode steps of a ShadowKvPool attend.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/gpu/bench/shadowkv_load.h"

namespace baton::kernels::cuda {

// Two lists for every KV head of every (layer, row), taken at random from the chunks that are not
// static, for steps that take them in turn: each shares a number of chunks with the other, which a
// cache holds then.
class ShadowKvChunkLists {
 public:
  static constexpr int32_t kTurns = 2;

  // `hits`, at most the budget, chunks of a list are in the other one, too. Sequences have at least
  // twice the budget less `hits` chunks that are not static. static_ids: ShadowKvPool::static_ids.
  ShadowKvChunkLists(const ShadowKvLoad& load,
                     const std::vector<int32_t>& static_ids,
                     int64_t hits);

  // [turns][layers][rows][kv_heads][budget chunks], ascending.
  const std::vector<int32_t>& ids() const { return ids_; }
  // Chunks of a call's rows whose keys at least one head of the row has to reconstruct, on average
  // over layers and turns.
  double missed_chunks() const { return missed_chunks_; }

 private:
  std::vector<int32_t> ids_;
  double missed_chunks_ = 0.0;
};

}  // namespace baton::kernels::cuda
