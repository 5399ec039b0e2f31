// What a sequence gets in format `diffkv` depends on neither the other rows of a call nor the
// number of threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/core/exec_context.h"
#include "kernels/kv_format/diffkv.h"
#include "kernels/ops/diffkv_params.h"
#include "tests/kernels/support/backends.h"
#include "tests/kernels/support/diffkv_problem.h"

namespace baton::kernels {
namespace {

constexpr int32_t kTokens[] = {1500, 3, 64, 700};
constexpr DiffKvShape kShape = {.geometry = {.kv_heads = 2, .head_dim = 128}, .group = 4};

class DiffKvInvarianceTest : public BackendTest {
 protected:
  // Sequences of kTokens tokens.
  std::vector<DiffKvCache> Load(const ExecContext& context) {
    std::vector<DiffKvCache> caches;
    for (const int32_t tokens : kTokens) {
      caches.emplace_back(kShape, tokens + 1);
      caches.back().Load(
          ops(), context, prompts_.emplace_back(kShape.geometry, tokens), PolicyOf(tokens));
    }
    return caches;
  }
  static DiffKvPolicy PolicyOf(int32_t tokens) {
    return AfterPrompt({.alpha_high = 1.0f, .alpha_low = 0.2f, .window = 16}, tokens);
  }

  // Moves the caches' pages to one pool, behind each other, and back.
  static std::vector<std::byte> Join(std::vector<DiffKvCache>& caches) {
    std::vector<std::byte> pool;
    for (DiffKvCache& cache : caches) {
      Shift(cache, static_cast<int32_t>(pool.size() / kShape.geometry.page_bytes()));
      pool.insert(pool.end(), cache.pool.begin(), cache.pool.end());
    }
    return pool;
  }
  static void Split(const std::vector<std::byte>& pool, std::vector<DiffKvCache>& caches) {
    auto begin = pool.begin();
    for (DiffKvCache& cache : caches) {
      const auto pages = static_cast<size_t>(begin - pool.begin()) / kShape.geometry.page_bytes();
      Shift(cache, -static_cast<int32_t>(pages));
      std::copy_n(begin, cache.pool.size(), cache.pool.begin());
      begin += static_cast<std::ptrdiff_t>(cache.pool.size());
    }
  }
  static void Shift(DiffKvCache& cache, int32_t pages) {
    for (int32_t& id : cache.table) id += pages;
    for (int32_t& id : cache.ids) id += pages;
  }

  // Appends and attends all sequences in one call each, in the order given. All pages must lie in
  // one pool, so the caches' pools are joined for the calls.
  std::vector<std::vector<float>> Together(const ExecContext& context,
                                           std::vector<DiffKvCache>& caches,
                                           const std::vector<size_t>& order) {
    const int64_t heads = kShape.group * kShape.geometry.kv_heads;
    const size_t width = static_cast<size_t>(kShape.geometry.kv_heads) *
                         static_cast<size_t>(kShape.geometry.head_dim);
    const size_t query_width = width * kShape.group;
    std::vector<std::byte> pool = Join(caches);
    const DiffKvPages pages = {.base = pool.data(), .geometry = kShape.geometry};
    std::vector<DiffKvAppendRow> appends;
    std::vector<DiffKvAttentionRow> rows;
    std::vector<std::vector<float>> outs(caches.size());
    std::vector<float> joint(caches.size() * query_width, NAN);
    std::vector<float> scratch;
    for (const size_t s : order) {
      DiffKvCache& cache = caches[s];
      appends.push_back({.layer = cache.layer(),
                         .policy = PolicyOf(kTokens[s]),
                         .row = static_cast<int32_t>(s),
                         .position = kTokens[s],
                         .lease = &cache.lease,
                         .actions = cache.actions.data()});
      rows.push_back({.layer = cache.layer(),
                      .row = static_cast<int32_t>(s),
                      .position = kTokens[s],
                      .probabilities = cache.probabilities.data(),
                      .probability_stride = cache.max_tokens,
                      .scratch_begin = static_cast<int64_t>(scratch.size())});
      scratch.resize(scratch.size() + static_cast<size_t>(DiffKvScratchFloats(
                                          kShape.geometry, heads, cache.max_tokens)),
                     NAN);
    }
    const auto count = static_cast<int64_t>(order.size());
    EXPECT_TRUE(
        ops()
            .diffkv_sweep(context, {.rows = appends.data(), .num_rows = count, .pages = pages})
            .ok());
    EXPECT_TRUE(
        ops()
            .diffkv_take_pages(
                context, {.rows = appends.data(), .layers = 1, .sequences = count, .pages = pages})
            .ok());
    EXPECT_TRUE(ops()
                    .diffkv_append(context,
                                   {.k = k_.data(),
                                    .v = v_.data(),
                                    .stride = static_cast<int64_t>(width),
                                    .rows = appends.data(),
                                    .num_rows = count,
                                    .pages = pages})
                    .ok());
    EXPECT_TRUE(ops()
                    .diffkv_attention(context,
                                      {.q = q_.data(),
                                       .q_stride = static_cast<int64_t>(query_width),
                                       .out = joint.data(),
                                       .out_stride = static_cast<int64_t>(query_width),
                                       .scratch = scratch.data(),
                                       .rows = rows.data(),
                                       .num_rows = count,
                                       .pages = pages,
                                       .heads = heads,
                                       .scale = 0.1f})
                    .ok());
    for (const size_t s : order) {
      const auto out = joint.begin() + static_cast<std::ptrdiff_t>(s * query_width);
      outs[s].assign(out, out + static_cast<std::ptrdiff_t>(query_width));
    }
    Split(pool, caches);
    return outs;
  }

  std::vector<DiffKvPrompt> prompts_;
  std::vector<float> q_ = RandomFloats(4 * 8 * 128, 2.0f);
  std::vector<float> k_ = RandomFloats(4 * 2 * 128);
  std::vector<float> v_ = RandomFloats(4 * 2 * 128);
};

TEST_P(DiffKvInvarianceTest, BatchesAndThreadsLeaveNoTrace) {
  const TestContext one(ops(), 1);
  const std::vector<DiffKvCache> loaded = Load(*one);
  std::vector<DiffKvCache> alone = loaded;
  std::vector<std::vector<float>> want(loaded.size());
  for (size_t s = 0; s < loaded.size(); ++s) {
    want[s] = Together(*one, alone, {s})[s];
  }
  for (const int threads : {1, 2, 3, 5}) {
    const TestContext context(ops(), threads);
    for (const std::vector<size_t>& order :
         {std::vector<size_t>{0, 1, 2, 3}, {3, 1, 0, 2}, {2, 0, 3, 1}}) {
      std::vector<DiffKvCache> caches = loaded;
      const std::vector<std::vector<float>> got = Together(*context, caches, order);
      for (size_t s = 0; s < loaded.size(); ++s) {
        ExpectSameBits(got[s], want[s]);
        ExpectSameCache(caches[s], alone[s]);
      }
    }
  }
}

TEST_P(DiffKvInvarianceTest, EncodingIsTheSameForEveryNumberOfThreads) {
  const DiffKvPrompt prompt(kShape.geometry, 1500);
  DiffKvCache want(kShape, 1500);
  want.Load(ops(), *TestContext(ops(), 1), prompt, PolicyOf(1500));
  for (const int threads : {2, 3, 5}) {
    DiffKvCache got(kShape, 1500);
    got.Load(ops(), *TestContext(ops(), threads), prompt, PolicyOf(1500));
    ExpectSameCache(got, want);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends,
                         DiffKvInvarianceTest,
                         testing::ValuesIn(kBackends),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace baton::kernels
