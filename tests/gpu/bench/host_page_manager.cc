#include "tests/gpu/bench/host_page_manager.h"

#include <cstddef>
#include <numeric>

#include "absl/status/status.h"

#include "common/base/status_macros.h"
#include "kernels/kv_format/diffkv.h"
#include "kernels/ops/diffkv_pages.h"
#include "kernels/ops/diffkv_params.h"
#include "tests/gpu/bench/diffkv_load.h"

namespace baton::kernels::cuda {

HostPageManager::HostPageManager(const DiffKvLoad& load, int threads)
    : load_(load),
      threads_(threads),
      free_(static_cast<size_t>(load.pages())),
      counts_(static_cast<size_t>(load.sequences() * load.geometry.kv_heads * kDiffKvTiers)),
      tables_(static_cast<size_t>(load.pages()), -1),
      grown_(counts_.size(), -1),
      needs_(static_cast<size_t>(load.sequences())),
      begins_(needs_.size()),
      statuses_(needs_.size()) {
  std::iota(free_.begin(), free_.end(), 0);
}

DiffKvLayer HostPageManager::Layer(int64_t sequence) {
  const int64_t head = sequence * load_.geometry.kv_heads;
  return {.page_table = tables_.data() + head * load_.columns(),
          .token_counts = counts_.data() + head * kDiffKvTiers,
          .columns = load_.columns()};
}

absl::Status HostPageManager::ShareOut() {
  int64_t begin = 0;
  for (size_t sequence = 0; sequence < needs_.size(); ++sequence) {
    begins_[sequence] = begin;
    begin += needs_[sequence];
  }
  return begin <= static_cast<int64_t>(free_.size())
             ? absl::OkStatus()
             : absl::ResourceExhaustedError("the list has too few pages");
}

absl::Status HostPageManager::AssignPrompts() {
  const int32_t heads = load_.geometry.kv_heads;
  threads_.ParallelFor(load_.sequences(), [&](int64_t sequence, int /*thread*/) {
    const DiffKvLayer layer = Layer(sequence);
    int32_t need = 0;
    for (int32_t head = 0; head < heads; ++head) {
      for (int32_t tier = 0; tier < kDiffKvTiers; ++tier) {
        need += load_.geometry.pages_for(tier, DiffKvCount(layer, head, tier));
      }
    }
    needs_[static_cast<size_t>(sequence)] = need;
  });
  BATON_RETURN_IF_ERROR(ShareOut());
  threads_.ParallelFor(load_.sequences(), [&](int64_t index, int /*thread*/) {
    const auto sequence = static_cast<size_t>(index);
    DiffKvLease lease = {.ids = free_.data() + begins_[sequence], .count = needs_[sequence]};
    statuses_[sequence] =
        AssignDiffKvPages({.geometry = load_.geometry, .layer = Layer(index), .lease = &lease});
  });
  for (const absl::Status& status : statuses_) {
    BATON_RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

bool HostPageManager::Full(int64_t count_index) const {
  const auto tier = static_cast<int32_t>(count_index % kDiffKvTiers);
  const int32_t page_tokens = DiffKvPageTokens(load_.geometry.tiers[tier]);
  return counts_[static_cast<size_t>(count_index)] % page_tokens == 0;
}

absl::Status HostPageManager::Grow() {
  const int64_t counts = int64_t{load_.geometry.kv_heads} * kDiffKvTiers;
  threads_.ParallelFor(load_.sequences(), [&](int64_t sequence, int /*thread*/) {
    int32_t need = 0;
    for (int64_t i = sequence * counts; i < (sequence + 1) * counts; ++i) {
      need += Full(i) ? 1 : 0;
    }
    needs_[static_cast<size_t>(sequence)] = need;
  });
  BATON_RETURN_IF_ERROR(ShareOut());
  threads_.ParallelFor(load_.sequences(), [&](int64_t sequence, int /*thread*/) {
    const int32_t* ids = free_.data() + begins_[static_cast<size_t>(sequence)];
    for (int64_t i = sequence * counts; i < (sequence + 1) * counts; ++i) {
      grown_[static_cast<size_t>(i)] = Full(i) ? *ids++ : -1;
    }
  });
  return absl::OkStatus();
}

}  // namespace baton::kernels::cuda
