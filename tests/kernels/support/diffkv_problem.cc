#include "tests/kernels/support/diffkv_problem.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/kv_format/diffkv.h"
#include "kernels/kv_format/unobserved_range.h"
#include "kernels/ops/diffkv_pages.h"
#include "kernels/ops/diffkv_params.h"
#include "kernels/ops/diffkv_policy.h"
#include "kernels/ops/op_table.h"
#include "tests/kernels/support/backends.h"

namespace baton::kernels {

std::vector<float> SeededFloats(int64_t count, uint32_t seed, float scale) {
  std::mt19937 random(TestSeed() + seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(static_cast<size_t>(count));
  std::generate(values.begin(), values.end(), [&] { return normal(random); });
  return RoundedTo(values, DType::kBF16);
}

DiffKvToken::DiffKvToken(const DiffKvGeometry& geometry, uint32_t seed)
    : k(SeededFloats(int64_t{geometry.kv_heads} * geometry.head_dim, 2 * seed, 1.0f)),
      v(SeededFloats(int64_t{geometry.kv_heads} * geometry.head_dim, 2 * seed + 1, 1.0f)) {}

DiffKvPolicy AfterPrompt(DiffKvPolicy policy, int32_t prompt_tokens) {
  static auto& ranges = *new std::map<int32_t, UnobservedRange>();
  UnobservedRange& range = ranges[prompt_tokens];
  range = DiffKvUnobserved(0, prompt_tokens);
  policy.unobserved = &range;
  policy.unobserved_count = 1;
  return policy;
}

DiffKvPolicy MixedPolicy(int32_t prompt_tokens) {
  return AfterPrompt({.alpha_high = 1.0f, .alpha_low = 0.2f, .window = 16}, prompt_tokens);
}

std::vector<DiffKvGeometry> DiffKvGeometries(int32_t kv_heads) {
  constexpr DiffKvTier kTierPairs[][kDiffKvTiers] = {
      {{8, 4}, {4, 2}}, {{8, 8}, {8, 4}}, {{8, 8}, {4, 4}}, {{4, 4}, {4, 2}}, {{4, 2}, {4, 2}}};
  std::vector<DiffKvGeometry> geometries;
  for (const int32_t head_dim : {64, 128}) {
    for (const auto& tiers : kTierPairs) {
      geometries.push_back(
          {.kv_heads = kv_heads, .head_dim = head_dim, .tiers = {tiers[0], tiers[1]}});
    }
  }
  return geometries;
}

std::string Describe(const DiffKvShape& shape) {
  const DiffKvTier& high = shape.geometry.tiers[kDiffKvHigh];
  const DiffKvTier& low = shape.geometry.tiers[kDiffKvLow];
  return absl::StrCat("K",
                      high.key_bits,
                      "V",
                      high.value_bits,
                      " K",
                      low.key_bits,
                      "V",
                      low.value_bits,
                      " head_dim ",
                      shape.geometry.head_dim,
                      " group ",
                      shape.group,
                      " window ",
                      shape.sliding_window);
}

DiffKvPrompt::DiffKvPrompt(const DiffKvGeometry& geometry, int32_t tokens_in, DType dtype)
    : tokens(tokens_in),
      layout({.page_tokens = 16,
              .kv_heads = geometry.kv_heads,
              .head_dim = geometry.head_dim,
              .dtype = dtype}) {
  const auto pages = static_cast<size_t>(layout.pages_for(tokens));
  dense = Buffer(pages * layout.stride_bytes());
  const std::vector<float> values = RandomFloats(dense.size() / DTypeBytes(dtype));
  const std::vector<std::byte> bytes = Encode(values, dtype);
  std::memcpy(dense.data(), bytes.data(), bytes.size());
  dense_table.resize(pages);
  std::iota(dense_table.rbegin(), dense_table.rend(), 0);
  // Sums of at most 64 queries' probabilities around 1 / N: all three classes occur.
  scores = RandomFloats(static_cast<size_t>(geometry.kv_heads) * static_cast<size_t>(tokens));
  for (float& score : scores) {
    score = std::fabs(score) * 64.0f / static_cast<float>(tokens);
  }
}

DiffKvCache::DiffKvCache(const DiffKvShape& shape_in, int32_t max_tokens_in)
    : shape(shape_in),
      columns(shape_in.geometry.columns_for(max_tokens_in)),
      table(static_cast<size_t>(shape_in.geometry.kv_heads * columns), -1),
      counts(static_cast<size_t>(shape_in.geometry.kv_heads * kDiffKvTiers), 0),
      ids(static_cast<size_t>(shape_in.geometry.kv_heads * columns)),
      pool(ids.size() * shape_in.geometry.page_bytes(), std::byte{0xff}),
      probabilities(static_cast<size_t>(shape_in.geometry.kv_heads * max_tokens_in), NAN),
      actions(static_cast<size_t>(shape_in.geometry.kv_heads)),
      max_tokens(max_tokens_in) {
  std::iota(ids.rbegin(), ids.rend(), 0);
  lease = {.ids = nullptr, .count = static_cast<int32_t>(ids.size())};
}

DiffKvLayer DiffKvCache::layer() {
  lease.ids = ids.data();  // after a copy the lease would still name the original's
  return {.page_table = table.data(), .token_counts = counts.data(), .columns = columns};
}
DiffKvPages DiffKvCache::pages() { return {.base = pool.data(), .geometry = shape.geometry}; }

int32_t DiffKvCache::Count(int32_t head, int32_t tier) const {
  return counts[static_cast<size_t>(int64_t{head} * kDiffKvTiers + tier)];
}
int32_t DiffKvCache::PagesHeld(int32_t head) const {
  return shape.geometry.pages_for(kDiffKvHigh, Count(head, kDiffKvHigh)) +
         shape.geometry.pages_for(kDiffKvLow, Count(head, kDiffKvLow));
}
std::byte* DiffKvCache::PageData(int32_t head, int32_t tier, int32_t page) {
  return DiffKvPageData(pages(), layer(), head, tier, page);
}

void DiffKvCache::Load(const OpTable& ops,
                       const ExecContext& context,
                       const DiffKvPrompt& prompt,
                       const DiffKvPolicy& policy) {
  const DiffKvGeometry& geometry = shape.geometry;
  classes.resize(prompt.scores.size());
  absl::Status status = ops.diffkv_classify(context,
                                            {.scores = prompt.scores.data(),
                                             .score_stride = prompt.tokens,
                                             .tokens = prompt.tokens,
                                             .kv_heads = geometry.kv_heads,
                                             .policy = policy,
                                             .classes = classes.data(),
                                             .token_counts = counts.data()});
  ASSERT_TRUE(status.ok()) << status;
  const DiffKvLayer held = layer();
  status = ops.diffkv_assign_pages(context, {.geometry = geometry, .layer = held, .lease = &lease});
  ASSERT_TRUE(status.ok()) << status;
  DiffKvPrompt& source = const_cast<DiffKvPrompt&>(prompt);  // DensePages has no const twin
  status = ops.diffkv_encode(context,
                             {.source = {.base = source.dense.data(), .layout = prompt.layout},
                              .source_table = prompt.dense_table.data(),
                              .tokens = prompt.tokens,
                              .classes = classes.data(),
                              .scores = prompt.scores.data(),
                              .score_stride = prompt.tokens,
                              .layer = held,
                              .pages = pages()});
  ASSERT_TRUE(status.ok()) << status;
}

absl::Status DiffKvCache::Append(const OpTable& ops,
                                 const ExecContext& context,
                                 const DiffKvPolicy& policy,
                                 int32_t position,
                                 uint32_t seed,
                                 bool sweep) {
  const DiffKvToken token(shape.geometry, seed);
  DiffKvAppendRow row = {.layer = layer(),
                         .policy = policy,
                         .position = position,
                         .sweep = sweep,
                         .lease = &lease,
                         .actions = actions.data()};
  absl::Status status = ops.diffkv_sweep(context, {.rows = &row, .num_rows = 1, .pages = pages()});
  if (!status.ok()) {
    return status;
  }
  status =
      ops.diffkv_take_pages(context, {.rows = &row, .layers = 1, .sequences = 1, .pages = pages()});
  if (!status.ok()) {
    return status;
  }
  return ops.diffkv_append(context,
                           {.k = token.k.data(),
                            .v = token.v.data(),
                            .stride = static_cast<int64_t>(token.k.size()),
                            .rows = &row,
                            .num_rows = 1,
                            .pages = pages()});
}

std::vector<float> DiffKvCache::Attend(const OpTable& ops,
                                       const ExecContext& context,
                                       int32_t position,
                                       uint32_t seed,
                                       bool first,
                                       bool last) {
  const DiffKvGeometry& geometry = shape.geometry;
  const int64_t heads = shape.group * geometry.kv_heads;
  const std::vector<float> q = SeededFloats(heads * geometry.head_dim, seed, 2.0f);
  std::vector<float> out(q.size(), NAN);
  std::vector<float> scratch(static_cast<size_t>(DiffKvScratchFloats(geometry, heads, max_tokens)),
                             NAN);
  DiffKvAttentionRow row = {.layer = layer(),
                            .position = position,
                            .probabilities = probabilities.data(),
                            .probability_stride = max_tokens};
  const absl::Status status =
      ops.diffkv_attention(context,
                           {.q = q.data(),
                            .q_stride = static_cast<int64_t>(q.size()),
                            .out = out.data(),
                            .out_stride = static_cast<int64_t>(out.size()),
                            .scratch = scratch.data(),
                            .rows = &row,
                            .num_rows = 1,
                            .pages = pages(),
                            .heads = heads,
                            .scale = 1.0f / std::sqrt(static_cast<float>(geometry.head_dim)),
                            .sliding_window = shape.sliding_window,
                            .first = first,
                            .last = last});
  EXPECT_TRUE(status.ok()) << status;
  return out;
}

void ExpectSameCache(const DiffKvCache& got, const DiffKvCache& want) {
  ASSERT_EQ(got.counts, want.counts) << SeedMessage();
  ASSERT_EQ(got.table, want.table) << SeedMessage();
  ASSERT_EQ(got.lease.used, want.lease.used) << SeedMessage();
  ASSERT_EQ(got.pool.size(), want.pool.size());
  const auto difference = std::mismatch(got.pool.begin(), got.pool.end(), want.pool.begin());
  const size_t page_bytes = got.shape.geometry.page_bytes();
  const auto at = static_cast<size_t>(difference.first - got.pool.begin());
  ASSERT_EQ(at, got.pool.size()) << "page " << at / page_bytes << " byte " << at % page_bytes
                                 << "; " << SeedMessage();
}

}  // namespace baton::kernels
