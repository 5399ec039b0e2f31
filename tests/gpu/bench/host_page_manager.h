// Page management of format `diffkv` by threads of the host.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

#include "kernels/core/thread_pool.h"
#include "kernels/ops/diffkv_params.h"
#include "tests/gpu/bench/diffkv_load.h"

namespace baton::kernels::cuda {

// What a manager has to do that does not run where the counts are made: it is given the counts of
// every head, gives out pages of one list, and leaves what the device has to be told. Sequences and
// layers are shared out between the threads; who gets which ids is decided between two passes, so
// results do not depend on the threads. Not thread-safe.
class HostPageManager {
 public:
  HostPageManager(const DiffKvLoad& load, int threads);

  // Of all heads, [layers][rows][kv_heads][kDiffKvTiers]: to be filled before a call.
  std::vector<int32_t>& counts() { return counts_; }

  // Gives every head the pages that its counts need; tables() is what the device gets.
  // kResourceExhausted when the list is too short.
  absl::Status AssignPrompts();
  // Gives a page to every tier of a head whose last page is full; grown() is what the device gets.
  // The pages of a call before are free again.
  absl::Status Grow();

  // [layers][rows][kv_heads][columns]
  const std::vector<int32_t>& tables() const { return tables_; }
  // [layers][rows][kv_heads][kDiffKvTiers], -1 where the page has room.
  const std::vector<int32_t>& grown() const { return grown_; }

 private:
  bool Full(int64_t count_index) const;
  DiffKvLayer Layer(int64_t sequence);
  // Turns what each sequence needs into where its ids begin.
  absl::Status ShareOut();

  const DiffKvLoad load_;
  ThreadPool threads_;
  std::vector<int32_t> free_;
  std::vector<int32_t> counts_;
  std::vector<int32_t> tables_;
  std::vector<int32_t> grown_;
  std::vector<int32_t> needs_;   // pages, by (layer, row)
  std::vector<int64_t> begins_;  // in free_
  std::vector<absl::Status> statuses_;
};

}  // namespace baton::kernels::cuda
