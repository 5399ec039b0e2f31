#include "tests/gpu/support/device_diffkv.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"

#include "kernels/core/exec_context.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/kv_format/diffkv.h"
#include "kernels/ops/diffkv_params.h"
#include "kernels/ops/op_table.h"
#include "kernels/ops/params.h"
#include "tests/gpu/support/gpu_test.h"
#include "tests/kernels/support/diffkv_problem.h"

namespace baton::kernels::cuda {
namespace {

DeviceArray<uint16_t> Joined(const DiffKvGeometry& geometry,
                             const std::vector<uint32_t>& seeds,
                             std::vector<float> DiffKvToken::* vectors) {
  std::vector<float> joined;
  for (const uint32_t seed : seeds) {
    const DiffKvToken token(geometry, seed);
    joined.insert(joined.end(), (token.*vectors).begin(), (token.*vectors).end());
  }
  return Activations(joined);
}

}  // namespace

DevicePolicy::DevicePolicy(const DiffKvPolicy& policy)
    : policy_(policy),
      unobserved_(std::span(policy.unobserved, static_cast<size_t>(policy.unobserved_count))) {}

DiffKvPolicy DevicePolicy::get() const {
  DiffKvPolicy policy = policy_;
  policy.unobserved = unobserved_.data();
  return policy;
}

DeviceDiffKvPrompt::DeviceDiffKvPrompt(DiffKvPrompt& prompt)
    : tokens_(prompt.tokens),
      layout_(prompt.layout),
      dense_(std::span<const std::byte>(prompt.dense.data(), prompt.dense.size())),
      table_(prompt.dense_table),
      scores_(prompt.scores) {}

DensePages DeviceDiffKvPrompt::pages() const { return {.base = dense_.data(), .layout = layout_}; }

DeviceDiffKvCache::DeviceDiffKvCache(DiffKvCache& cache)
    : geometry_(cache.shape.geometry),
      columns_(cache.columns),
      table_(cache.table),
      counts_(cache.counts),
      ids_(cache.ids),
      lease_(DeviceArray<DiffKvLease>::Poisoned(1)),
      actions_(cache.actions),
      pool_(cache.pool),
      probabilities_(cache.probabilities) {
  Upload(cache);
}

void DeviceDiffKvCache::Upload(DiffKvCache& cache) const {
  table_.Set(cache.table);
  counts_.Set(cache.counts);
  ids_.Set(cache.ids);
  DiffKvLease lease = cache.lease;
  lease.ids = ids_.data();
  lease_.Set(std::span<const DiffKvLease>(&lease, 1));
  actions_.Set(cache.actions);
  pool_.Set(cache.pool);
  probabilities_.Set(cache.probabilities);
}

void DeviceDiffKvCache::Download(DiffKvCache& cache) const {
  cache.table = table_.Get();
  cache.counts = counts_.Get();
  cache.ids = ids_.Get();
  const DiffKvLease lease = lease_.Get().front();
  cache.lease.count = lease.count;
  cache.lease.used = lease.used;
  cache.actions = actions_.Get();
  cache.pool = pool_.Get();
  cache.probabilities = probabilities_.Get();
}

DiffKvLayer DeviceDiffKvCache::layer() const {
  return {.page_table = table_.data(), .token_counts = counts_.data(), .columns = columns_};
}

DiffKvPages DeviceDiffKvCache::pages() const {
  return {.base = pool_.data(), .geometry = geometry_};
}

std::vector<DiffKvClass> DeviceDiffKvCache::Load(const OpTable& ops,
                                                 const ExecContext& context,
                                                 const DeviceDiffKvPrompt& prompt,
                                                 const DiffKvPolicy& policy) const {
  const auto classes = DeviceArray<DiffKvClass>::Poisoned(static_cast<size_t>(geometry_.kv_heads) *
                                                          static_cast<size_t>(prompt.tokens()));
  const DevicePolicy device_policy(policy);
  absl::Status status = ops.diffkv_classify(context,
                                            {.scores = prompt.scores(),
                                             .score_stride = prompt.tokens(),
                                             .tokens = prompt.tokens(),
                                             .kv_heads = geometry_.kv_heads,
                                             .policy = device_policy.get(),
                                             .classes = classes.data(),
                                             .token_counts = counts_.data()});
  EXPECT_TRUE(status.ok()) << status;
  status =
      ops.diffkv_assign_pages(context, {.geometry = geometry_, .layer = layer(), .lease = lease()});
  EXPECT_TRUE(status.ok()) << status;
  status = ops.diffkv_encode(context,
                             {.source = prompt.pages(),
                              .source_table = prompt.table(),
                              .tokens = prompt.tokens(),
                              .classes = classes.data(),
                              .scores = prompt.scores(),
                              .score_stride = prompt.tokens(),
                              .layer = layer(),
                              .pages = pages()});
  EXPECT_TRUE(status.ok()) << status;
  status = context.queue->Wait();
  EXPECT_TRUE(status.ok()) << status;
  return classes.Get();
}

DeviceDiffKvTokens::DeviceDiffKvTokens(const DiffKvGeometry& geometry,
                                       const std::vector<uint32_t>& seeds)
    : stride_(int64_t{geometry.kv_heads} * geometry.head_dim),
      k_(Joined(geometry, seeds, &DiffKvToken::k)),
      v_(Joined(geometry, seeds, &DiffKvToken::v)) {}

DiffKvAppendParams DeviceDiffKvTokens::params() const {
  return {.k = k_.data(), .v = v_.data(), .stride = stride_, .pages = {}};
}

DiffKvAppendRow DeviceAppendRow(int32_t token,
                                const DeviceDiffKvCache& cache,
                                const DevicePolicy& policy,
                                int32_t position,
                                bool sweep) {
  return {.layer = cache.layer(),
          .policy = policy.get(),
          .row = token,
          .position = position,
          .sweep = sweep,
          .lease = cache.lease(),
          .actions = cache.actions()};
}

}  // namespace baton::kernels::cuda
