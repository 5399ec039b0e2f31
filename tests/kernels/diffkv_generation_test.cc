// Long generations in format `diffkv` against a model that keeps tokens in a map by position and
// knows nothing of pages or slots.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "kernels/core/half.h"
#include "kernels/kv_format/diffkv.h"
#include "kernels/kv_format/diffkv_page.h"
#include "kernels/kv_format/quantize.h"
#include "kernels/ops/diffkv_params.h"
#include "kernels/select.h"
#include "tests/kernels/support/backends.h"
#include "tests/kernels/support/diffkv_problem.h"

namespace baton::kernels {
namespace {

constexpr float kInfinity = INFINITY;
constexpr int32_t kPrompt = 200;

struct ModelToken {
  bool high = true;
  float score = 0.0f;
  std::vector<uint8_t> codes;  // key, then value
  QuantRange key;
  QuantRange value;
};

// One KV head.
class ModelHead {
 public:
  explicit ModelHead(const DiffKvPolicy& policy) : policy_(policy) {}

  std::map<int32_t, ModelToken>& tokens() { return tokens_; }

  float Mean(int32_t position, int32_t p) const {
    const int32_t birth = std::max(position, kPrompt - 64);
    return tokens_.at(position).score / static_cast<float>(p - birth);
  }
  // Position of the least significant token of a tier outside window and sinks, or -1.
  int32_t Least(bool high, int32_t p) const {
    int32_t least = -1;
    for (const auto& [position, token] : tokens_) {
      if (token.high != high || position > p - policy_.window || position < policy_.sinks) continue;
      if (least < 0 || Mean(position, p) < Mean(least, p)) least = position;
    }
    return least;
  }

  // The released code's step: what happens to old tokens when p arrives.
  void Release(int32_t p) {
    const int32_t h = Least(true, p);
    const int32_t l = Least(false, p);
    const float q = policy_.alpha_high / static_cast<float>(p);
    const float r = policy_.alpha_low / static_cast<float>(p);
    const float mean_h = h < 0 ? kInfinity : Mean(h, p);
    const float mean_l = l < 0 ? kInfinity : Mean(l, p);
    if (static_cast<int32_t>(tokens_.size()) + 1 <= policy_.window || mean_h >= q) return;
    if (mean_h < r && mean_h < mean_l) {
      tokens_.erase(h);
      ++pruned;
      return;
    }
    if (mean_l < r) {
      tokens_.erase(l);
      ++replaced;
    }
    Demote(h);
  }

  // Algorithm 1 of the paper for the token that leaves the window.
  void Paper(int32_t p) {
    const int32_t candidate = p - policy_.window;
    if (candidate < policy_.sinks || !tokens_.contains(candidate) || !tokens_.at(candidate).high) {
      return;
    }
    const float q = policy_.alpha_high / static_cast<float>(p);
    const float r = policy_.alpha_low / static_cast<float>(p);
    if (Mean(candidate, p) >= q) {
      const int32_t victim = Least(true, p);
      if (Mean(victim, p) < r) {
        tokens_.erase(victim);
        ++pruned;
      } else if (Mean(victim, p) < q) {
        Demote(victim);
      }
    } else if (Mean(candidate, p) >= r) {
      const int32_t victim = Least(false, p);
      if (victim >= 0 && Mean(victim, p) < r) {
        tokens_.erase(victim);
        ++replaced;
      }
      Demote(candidate);
    } else {
      tokens_.erase(candidate);
      ++pruned;
    }
  }

  int demoted = 0;
  int pruned = 0;
  int replaced = 0;

 private:
  void Demote(int32_t position) {  // K8V4 to K4V2, head_dim 64
    ModelToken& token = tokens_.at(position);
    token.high = false;
    for (size_t i = 0; i < token.codes.size(); ++i) {
      const int code = token.codes[i];
      token.codes[i] =
          static_cast<uint8_t>(i < token.codes.size() / 2 ? (code + 8) / 17 : (code + 2) / 5);
    }
    token.key.scale = F32ToF16(17.0f * F16ToF32(token.key.scale));
    token.value.scale = F32ToF16(5.0f * F16ToF32(token.value.scale));
    ++demoted;
  }

  DiffKvPolicy policy_;
  std::map<int32_t, ModelToken> tokens_;
};

// fn(page, slot in the page, slot of the head) for every stored token, high before low.
template <typename Function>
void ForTokens(DiffKvCache& cache, int32_t head, const Function& fn) {
  int32_t index = 0;
  for (int32_t tier = 0; tier < kDiffKvTiers; ++tier) {
    const DiffKvPageLayout layout = cache.shape.geometry.layout(tier);
    for (int32_t slot = 0; slot < cache.Count(head, tier); ++slot, ++index) {
      const DiffKvPage page(layout, cache.PageData(head, tier, slot / layout.page_tokens()));
      fn(page, slot % layout.page_tokens(), index);
    }
  }
}

std::vector<uint8_t> CodesOf(const DiffKvPage& page, int32_t slot) {
  std::vector<uint8_t> codes;
  for (int32_t dim = 0; dim < page.layout().head_dim; ++dim) {
    codes.push_back(page.KeyCode(slot, dim));
  }
  for (int32_t dim = 0; dim < page.layout().head_dim; ++dim) {
    codes.push_back(page.ValueCode(slot, dim));
  }
  return codes;
}

// Takes what the cache holds at `position` into the model as it is.
void Adopt(DiffKvCache& cache, int32_t head, int32_t position, ModelHead& model) {
  ForTokens(cache, head, [&](const DiffKvPage& page, int32_t slot, int32_t) {
    if (position >= 0 && page.position(slot) != position) return;
    model.tokens()[page.position(slot)] = {
        .high = page.layout().tier == cache.shape.geometry.tiers[kDiffKvHigh],
        .score = page.score(slot),
        .codes = CodesOf(page, slot),
        .key = page.key_range(slot),
        .value = page.value_range(slot)};
  });
}

// Tokens, tiers and scores are the model's; every token is stored once. `deep` compares codes too.
void ExpectModel(DiffKvCache& cache, int32_t head, ModelHead& model, bool deep) {
  std::set<int32_t> seen;
  ForTokens(cache, head, [&](const DiffKvPage& page, int32_t slot, int32_t) {
    const int32_t position = page.position(slot);
    ASSERT_TRUE(seen.insert(position).second) << "position " << position << " is stored twice";
    ASSERT_TRUE(model.tokens().contains(position)) << "position " << position;
    const ModelToken& want = model.tokens().at(position);
    ASSERT_EQ(page.layout().tier == cache.shape.geometry.tiers[kDiffKvHigh], want.high) << position;
    ASSERT_EQ(page.score(slot), want.score) << position;
    if (deep) {
      ASSERT_EQ(CodesOf(page, slot), want.codes) << position;
      ASSERT_EQ(page.key_range(slot), want.key) << position;
      ASSERT_EQ(page.value_range(slot), want.value) << position;
    }
  });
  ASSERT_EQ(seen.size(), model.tokens().size());
}

// Every id is in one place: a table cell that its head holds, or the lease's rest; the cells held
// from the left and from the right do not cross.
void ExpectPagesInOnePlace(const DiffKvCache& cache) {
  std::set<int32_t> held;
  int32_t pages = 0;
  for (int32_t head = 0; head < cache.shape.geometry.kv_heads; ++head) {
    const auto row = cache.table.begin() + int64_t{head} * cache.columns;
    const int32_t high =
        cache.shape.geometry.pages_for(kDiffKvHigh, cache.Count(head, kDiffKvHigh));
    const int32_t low = cache.shape.geometry.pages_for(kDiffKvLow, cache.Count(head, kDiffKvLow));
    ASSERT_LE(high + low, cache.columns);
    held.insert(row, row + high);
    held.insert(row + cache.columns - low, row + cache.columns);
    pages += high + low;
  }
  ASSERT_EQ(static_cast<int32_t>(held.size()), pages);
  ASSERT_EQ(cache.lease.used, pages) << "pages are taken when needed, never before";
  for (int32_t i = cache.lease.used; i < cache.lease.count; ++i) {
    ASSERT_FALSE(held.contains(cache.ids[static_cast<size_t>(i)]));
  }
}

class DiffKvGenerationTest : public testing::TestWithParam<DiffKvRule> {
 protected:
  static constexpr int32_t kSteps = 2000;

  // One step: append, check against the model, attend, add the probabilities to the model.
  void Step(int32_t p) {
    std::vector<int32_t> before = cache_.counts;
    const bool sweep = p % 7 != 0;
    for (ModelHead& model : models_) {
      if (sweep && policy_.rule == DiffKvRule::kRelease) model.Release(p);
      if (sweep && policy_.rule == DiffKvRule::kPaper) model.Paper(p);
    }
    ASSERT_TRUE(
        cache_.Append(CpuOps(), *context_, policy_, p, static_cast<uint32_t>(p), sweep).ok());
    for (int32_t head = 0; head < kHeads; ++head) {
      ModelHead& model = models_[static_cast<size_t>(head)];
      Adopt(cache_, head, p, model);
      ASSERT_TRUE(model.tokens().contains(p));
      ASSERT_EQ(model.tokens().at(p).score, 0.0f);
      ASSERT_NO_FATAL_FAILURE(ExpectModel(cache_, head, model, p % 97 == 0));
      int32_t change = 0;
      for (int32_t tier = 0; tier < kDiffKvTiers; ++tier) {
        const int32_t grown =
            cache_.Count(head, tier) - before[static_cast<size_t>(head * kDiffKvTiers + tier)];
        ASSERT_TRUE(grown == 0 || grown == 1);
        change += grown;
      }
      ASSERT_LE(change, 1);
      for (int32_t position = std::max(0, p - policy_.window + 1); position <= p; ++position) {
        ASSERT_TRUE(model.tokens().at(position).high) << "in the window: " << position;
      }
      for (int32_t position = 0; position < policy_.sinks; ++position) {
        ASSERT_TRUE(model.tokens().at(position).high) << "a sink: " << position;
      }
      ASSERT_LE(model.tokens().rbegin()->first, p) << "born before its step";
    }
    ASSERT_NO_FATAL_FAILURE(ExpectPagesInOnePlace(cache_));
    cache_.Attend(CpuOps(), *context_, p, static_cast<uint32_t>(p));
    for (int32_t head = 0; head < kHeads; ++head) {
      double mass = 0.0;
      ForTokens(cache_, head, [&](const DiffKvPage& page, int32_t slot, int32_t index) {
        const float probability =
            cache_.probabilities[static_cast<size_t>(head * cache_.max_tokens + index)];
        models_[static_cast<size_t>(head)].tokens().at(page.position(slot)).score += probability;
        mass += double{probability};
      });
      ASSERT_GE(mass, 1.0 - 1e-5);
      ASSERT_LE(mass, static_cast<double>(cache_.shape.group) + 1e-5);
    }
  }

  static constexpr int32_t kHeads = 2;
  TestContext context_{CpuOps(), 2};
  DiffKvPolicy policy_ = AfterPrompt(
      {.alpha_high = 1.6f, .alpha_low = 1.1f, .rule = GetParam(), .window = 32, .sinks = 3},
      kPrompt);
  DiffKvCache cache_{{.geometry = {.kv_heads = kHeads, .head_dim = 64}, .group = 2},
                     kPrompt + kSteps};
  std::vector<ModelHead> models_ = std::vector<ModelHead>(kHeads, ModelHead(policy_));
};

TEST_P(DiffKvGenerationTest, FollowsTheModelForALongTime) {
  SCOPED_TRACE(SeedMessage());
  const DiffKvPrompt prompt(cache_.shape.geometry, kPrompt);
  cache_.Load(CpuOps(), *context_, prompt, policy_);
  for (int32_t head = 0; head < kHeads; ++head) {
    Adopt(cache_, head, -1, models_[static_cast<size_t>(head)]);
  }
  for (int32_t p = kPrompt; p < kPrompt + kSteps; ++p) {
    ASSERT_NO_FATAL_FAILURE(Step(p)) << "position " << p;
  }
  for (const ModelHead& model : models_) {
    EXPECT_GT(model.demoted, 10);
    EXPECT_GT(model.pruned, 10);
    EXPECT_GT(model.replaced, 0);
  }
  // Everything goes back, and every id is there again.
  std::vector<int32_t> ids(cache_.ids.begin() + cache_.lease.used, cache_.ids.end());
  std::vector<int32_t> returned(cache_.table.size());
  int32_t count = 0;
  ASSERT_TRUE(CpuOps()
                  .diffkv_release_pages(*context_,
                                        {.geometry = cache_.shape.geometry,
                                         .layer = cache_.layer(),
                                         .ids = returned.data(),
                                         .count = &count})
                  .ok());
  EXPECT_EQ(count, cache_.lease.used);
  ids.insert(ids.end(), returned.begin(), returned.begin() + count);
  std::sort(ids.begin(), ids.end());
  std::vector<int32_t> all(cache_.ids.size());
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(ids, all);
}

// What a page held before it was taken leaves no trace: NaN bytes or any other.
TEST_P(DiffKvGenerationTest, StaleBytesAreNeverRead) {
  const DiffKvPrompt prompt(cache_.shape.geometry, kPrompt);
  DiffKvCache other = cache_;
  std::mt19937 random(TestSeed());
  for (std::byte& byte : other.pool) {
    byte = static_cast<std::byte>(random());
  }
  const std::vector<std::byte> untouched = other.pool;
  cache_.Load(CpuOps(), *context_, prompt, policy_);
  other.Load(CpuOps(), *context_, prompt, policy_);
  for (int32_t p = kPrompt; p < kPrompt + 200; ++p) {
    const auto seed = static_cast<uint32_t>(p);
    ASSERT_TRUE(cache_.Append(CpuOps(), *context_, policy_, p, seed).ok());
    ASSERT_TRUE(other.Append(CpuOps(), *context_, policy_, p, seed).ok());
    ExpectSameBits(other.Attend(CpuOps(), *context_, p, seed),
                   cache_.Attend(CpuOps(), *context_, p, seed));
  }
  EXPECT_EQ(other.table, cache_.table);
  const size_t page_bytes = cache_.shape.geometry.page_bytes();
  std::set<int32_t> held(cache_.ids.begin(), cache_.ids.begin() + cache_.lease.used);
  for (size_t id = 0; id < cache_.ids.size(); ++id) {
    const auto at = static_cast<std::ptrdiff_t>(id * page_bytes);
    const auto& want = held.contains(static_cast<int32_t>(id)) ? cache_.pool : untouched;
    ASSERT_TRUE(std::equal(other.pool.begin() + at,
                           other.pool.begin() + at + static_cast<std::ptrdiff_t>(page_bytes),
                           want.begin() + at))
        << "page " << id;
  }
}

TEST_P(DiffKvGenerationTest, AnAppendWithoutPagesLeftChangesNothing) {
  const DiffKvPrompt prompt(cache_.shape.geometry, kPrompt);
  cache_.Load(CpuOps(), *context_, prompt, policy_);
  cache_.lease.count = cache_.lease.used;
  int32_t p = kPrompt;
  absl::Status status;
  DiffKvCache before = cache_;
  for (; status.ok() && p < kPrompt + 200; ++p) {
    before = cache_;
    status = cache_.Append(CpuOps(), *context_, policy_, p, static_cast<uint32_t>(p), false);
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  ExpectSameCache(cache_, before);
}

INSTANTIATE_TEST_SUITE_P(Rules,
                         DiffKvGenerationTest,
                         testing::Values(DiffKvRule::kRelease, DiffKvRule::kPaper),
                         [](const auto& test) {
                           return test.param == DiffKvRule::kRelease ? "release" : "paper";
                         });

}  // namespace
}  // namespace baton::kernels
