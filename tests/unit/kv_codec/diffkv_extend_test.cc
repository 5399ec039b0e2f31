// Extensions in format diffkv against their definition, written out: outputs, scores, classes,
// slots, ages and pages.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/kv/codec/diffkv/diffkv_codec.h"
#include "common/kv/codec/diffkv/diffkv_sequence.h"
#include "common/kv/codec/encoded_format.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/kv_policy.h"
#include "common/kv/codec/policy_params.h"
#include "common/kv/pool/page_pool.h"
#include "kernels/core/half.h"
#include "kernels/kv_format/diffkv.h"
#include "kernels/kv_format/diffkv_page.h"
#include "kernels/kv_format/quantize.h"
#include "kernels/kv_format/unobserved_range.h"
#include "kernels/ops/diffkv_pages.h"
#include "kernels/ops/diffkv_params.h"
#include "tests/unit/kv_codec/codec_harness.h"
#include "tests/unit/kv_codec/extension_harness.h"
#include "tests/unit/kv_codec/plain_attention.h"

namespace baton::kv {
namespace {

using kernels::kDiffKvHigh;
using kernels::kDiffKvLow;

constexpr int32_t kPrompt = 300;
constexpr int32_t kGenerated = 37;
constexpr int32_t kHeld = kPrompt + kGenerated;
constexpr uint32_t kSalt = 5;
constexpr int32_t kGroup = kTestHeads / kTestKvHeads;

// A token in its slot.
struct Slot {
  PlainToken token;
  float score = 0.0f;
  int32_t tier = kDiffKvHigh;
};

DiffKvCodec& CodecOf(const EncodedKv& kv) { return static_cast<DiffKvCodec&>(kv.codec()); }

// The slots of a head, high before low.
std::vector<Slot> Slots(EncodedKv& kv, int32_t layer_index, int32_t head) {
  const kernels::DiffKvPages pages = CodecOf(kv).pages();
  const kernels::DiffKvLayer layer = static_cast<DiffKvSequence&>(kv).layer(layer_index);
  std::vector<Slot> slots;
  for (const int32_t tier : {kDiffKvHigh, kDiffKvLow}) {
    const kernels::DiffKvPageLayout layout = pages.geometry.layout(tier);
    for (int32_t i = 0; i < kernels::DiffKvCount(layer, head, tier); ++i) {
      const int32_t slot = i % layout.page_tokens();
      const kernels::DiffKvPage page(
          layout, kernels::DiffKvPageData(pages, layer, head, tier, i / layout.page_tokens()));
      Slot found = {
          .token = {.position = page.position(slot)}, .score = page.score(slot), .tier = tier};
      const auto widen = [](uint8_t code, kernels::QuantRange range) {
        return double{kernels::F16ToF32(range.scale)} * code +
               double{kernels::F16ToF32(range.zero)};
      };
      for (int32_t dim = 0; dim < kTestHeadDim; ++dim) {
        found.token.key.push_back(widen(page.KeyCode(slot, dim), page.key_range(slot)));
        found.token.value.push_back(widen(page.ValueCode(slot, dim), page.value_range(slot)));
      }
      slots.push_back(found);
    }
  }
  return slots;
}

std::vector<PlainToken> TokensOf(const std::vector<Slot>& slots) {
  std::vector<PlainToken> tokens;
  tokens.reserve(slots.size());
  for (const Slot& slot : slots) {
    tokens.push_back(slot.token);
  }
  return tokens;
}

// One head of one layer through an extension: what must come out.
class PlainExtension {
 public:
  PlainExtension(const std::vector<Slot>& held, const DiffKvPolicy& policy, int64_t end)
      : held_(held), policy_(policy), end_(end), tokens_(TokensOf(held)) {
    const bool all = policy.score == DiffKvPolicy::Score::kAll;
    first_observed_ = all ? kHeld : std::max<int64_t>(kHeld, end - 64);
    for (const Slot& slot : held) {
      scores_.push_back(double{slot.score});
    }
  }

  // The row at `position`, once for each reader: outputs [readers][group][head_dim].
  std::vector<std::vector<double>> Attend(int32_t layer,
                                          int32_t head,
                                          int64_t position,
                                          const TestReaders& readers) {
    tokens_.push_back(WorkingToken(kSalt, layer, head, position));
    scores_.push_back(0.0);
    std::vector<double> largest(tokens_.size());
    std::vector<std::vector<double>> outs;
    for (int32_t reader = 0; reader < readers.count; ++reader) {
      const auto query = ReaderQuery(reader, kSalt, layer, position);
      for (int32_t h = head * kGroup; h < (head + 1) * kGroup; ++h) {
        const PlainResult result = PlainAttention(
            query.data() + h * kTestHeadDim, position, readers.sliding_window, tokens_);
        outs.push_back(result.out);
        for (size_t i = 0; i < largest.size(); ++i) {
          largest[i] = std::max(largest[i], result.probabilities[i]);
        }
      }
    }
    const bool own = policy_.score == DiffKvPolicy::Score::kLastWindow;
    for (size_t i = 0; position >= first_observed_ && i < largest.size(); ++i) {
      scores_[i] += i + 1 == largest.size() && !own ? 0.0 : largest[i];
    }
    return outs;
  }

  // Counts the new tokens by class into `classes`.
  void ExpectTakenIn(const std::vector<Slot>& now, std::map<int32_t, int>& classes) {
    std::map<int64_t, double> scores;
    for (size_t i = 0; i < tokens_.size(); ++i) {
      scores[tokens_[i].position] = scores_[i];
    }
    for (const int32_t tier : {kDiffKvHigh, kDiffKvLow}) {
      // Slots that were there, then new ones in the order of their positions.
      std::vector<int64_t> before;
      std::vector<int64_t> after;
      for (const Slot& slot : held_) {
        if (slot.tier == tier) before.push_back(slot.token.position);
      }
      for (const Slot& slot : now) {
        if (slot.tier == tier) after.push_back(slot.token.position);
      }
      ASSERT_GE(after.size(), before.size());
      const auto middle = after.begin() + static_cast<ptrdiff_t>(before.size());
      EXPECT_TRUE(std::equal(before.begin(), before.end(), after.begin()));
      EXPECT_TRUE(std::is_sorted(middle, after.end()));
      EXPECT_TRUE(std::all_of(middle, after.end(), [](int64_t p) { return p >= kHeld; }));
    }
    std::map<int64_t, int32_t> tiers;
    for (const Slot& slot : now) {
      tiers[slot.token.position] = slot.tier;
      ASSERT_NEAR(slot.score, scores.at(slot.token.position), 2e-4) << slot.token.position;
    }
    for (int64_t position = kHeld; position < end_; ++position) {
      const int32_t tier = tiers.contains(position) ? tiers.at(position) : kPruned;
      ExpectTier(position, scores.at(position), tier);
      ++classes[tier];
    }
  }

 private:
  static constexpr int32_t kPruned = 2;

  // Means right at a threshold may fall to either side.
  void ExpectTier(int64_t position, double score, int32_t tier) const {
    const int64_t later = end_ - 1 - position;
    const bool all = policy_.score == DiffKvPolicy::Score::kAll;
    const auto queries = static_cast<double>(all ? later : std::min<int64_t>(later + 1, 64));
    if (later < policy_.window || position < policy_.sinks || queries == 0.0) {
      EXPECT_EQ(tier, kDiffKvHigh) << position;
      return;
    }
    const auto base =
        static_cast<double>(policy_.base == DiffKvPolicy::Base::kTokenIndex ? position + 1 : end_);
    const double mean = score / queries;
    const double high = double{policy_.alpha_high} / base;
    const double low = double{policy_.alpha_low} / base;
    const double least = tier == kDiffKvHigh ? high : tier == kDiffKvLow ? low : 0.0;
    const double most = tier == kPruned ? low : tier == kDiffKvLow ? high : 1e9;
    EXPECT_GE(mean, least - 1e-5) << position;
    EXPECT_LE(mean, most + 1e-5) << position;
  }

  std::vector<Slot> held_;
  DiffKvPolicy policy_;
  int64_t end_;
  int64_t first_observed_ = 0;
  std::vector<PlainToken> tokens_;
  std::vector<double> scores_;
};

class DiffKvExtendTest : public testing::Test {
 protected:
  void Check(const std::string& policy, int32_t tokens, const TestReaders& readers) {
    SCOPED_TRACE(testing::Message() << policy << ", " << tokens << " tokens, " << readers.count
                                    << " readers, window " << readers.sliding_window);
    const auto kv = KeptSequence(worker_, policy, kPrompt, kGenerated, kSalt);
    const TestExtension extension(worker_, kHeld, kHeld + tokens, kSalt);
    ASSERT_TRUE(worker_.Format(policy).Extend(*kv, extension.end(), 3));
    const KvFormatPolicy parsed = CodecWorker::Parse(policy);
    std::vector<PlainExtension> plain;
    for (int32_t layer = 0; layer < kTestLayers; ++layer) {
      for (int32_t head = 0; head < kTestKvHeads; ++head) {
        plain.emplace_back(
            Slots(*kv, layer, head), std::get<DiffKvPolicy>(parsed.resident), extension.end());
      }
    }
    const auto out = extension.Run(*kv, 64, readers);
    ASSERT_TRUE(out.ok()) << out.status();
    for (int32_t layer = 0; layer < kTestLayers; ++layer) {
      for (int32_t head = 0; head < kTestKvHeads; ++head) {
        PlainExtension& want = plain[static_cast<size_t>(int64_t{layer} * kTestKvHeads + head)];
        for (int32_t position = kHeld; position < extension.end(); ++position) {
          const auto outs = want.Attend(layer, head, position, readers);
          for (size_t i = 0; i < outs.size(); ++i) {
            const auto reader = static_cast<int32_t>(i) / kGroup;
            const float* got = extension.Row(*out, layer, reader, position, readers) +
                               (head * kGroup + static_cast<int32_t>(i) % kGroup) * kTestHeadDim;
            for (size_t dim = 0; dim < kTestHeadDim; ++dim) {
              ASSERT_NEAR(got[dim], outs[i][dim], 1e-4) << "position " << position;
            }
          }
        }
        SCOPED_TRACE(testing::Message() << "layer " << layer << " head " << head);
        ASSERT_NO_FATAL_FAILURE(want.ExpectTakenIn(Slots(*kv, layer, head), classes_));
      }
    }
  }

  CodecWorker worker_;
  std::map<int32_t, int> classes_;
};

TEST_F(DiffKvExtendTest, FollowsTheDefinition) {
  for (const int32_t tokens : {1, 40, 64, 65, 150}) {
    Check("diffkv:ah=1.45,al=1.25,w=16,sinks=2", tokens, {});
  }
  for (const int32_t tier : {0, 1, 2}) {
    EXPECT_GT(classes_[tier], 20) << "class " << tier << " is hardly there";
  }
}

TEST_F(DiffKvExtendTest, EveryQueryScoresUnderScoreAll) {
  for (const int32_t tokens : {1, 150}) {
    Check("diffkv:ah=1.45,al=1.25,w=8,score=all", tokens, {});
    Check("diffkv:high=k8v8,low=k4v4,ah=2,al=1,w=8,score=all,base=i,policy=paper", tokens, {});
  }
}

TEST_F(DiffKvExtendTest, LayersThatShareACacheScoreTogether) {
  for (const int32_t tokens : {1, 50, 150}) {
    Check("diffkv:ah=1.45,al=1.25,w=16", tokens, {.count = 3});
  }
  Check("diffkv:ah=1.45,al=1.25,w=16,score=all", 100, {.count = 2});
}

TEST_F(DiffKvExtendTest, SlidingWindowsHideOldTokens) {
  for (const int32_t window : {5, 100, 350}) {
    Check("diffkv:ah=1.45,al=1.25,w=16", 90, {.sliding_window = window});
  }
}

TEST_F(DiffKvExtendTest, AgesLeaveOutWhatWasNotObserved) {
  using kernels::UnobservedRange;
  for (const bool all : {false, true}) {
    const std::string policy = all ? "diffkv:score=all" : "diffkv";
    const auto kv = KeptSequence(worker_, policy, kPrompt, kGenerated, kSalt);
    std::vector<UnobservedRange> want = {{0, kPrompt - 64}};
    int32_t held = kHeld;
    for (const int32_t tokens : {100, 64, 1, 70}) {
      const TestExtension extension(worker_, held, held + tokens, kSalt);
      ASSERT_TRUE(worker_.Format(policy).Extend(*kv, extension.end(), 2));
      EXPECT_EQ(kv->first_observed(), all ? held : std::max(held, extension.end() - 64));
      ASSERT_TRUE(extension.Run(*kv, 64).ok());
      if (tokens > 64 && !all) {
        want.push_back({held, extension.end() - 64});
      }
      const kernels::DiffKvPolicy now = static_cast<DiffKvSequence&>(*kv).policy(0);
      EXPECT_EQ(std::vector(now.unobserved, now.unobserved + now.unobserved_count), want);
      ASSERT_TRUE(Decode(*kv, extension.end(), 2, kSalt).ok());
      held = extension.end() + 2;
    }
  }
}

// The mass that the stored tokens got so far.
double ScoreSum(EncodedKv& kv) {
  double sum = 0.0;
  for (int32_t layer = 0; layer < kTestLayers; ++layer) {
    for (int32_t head = 0; head < kTestKvHeads; ++head) {
      for (const Slot& slot : Slots(kv, layer, head)) {
        sum += slot.score;
      }
    }
  }
  return sum;
}

TEST_F(DiffKvExtendTest, OnlyQueriesOfEveryFourthPositionScore) {
  const std::string policy = "diffkv:ah=0,al=0,every=4";
  const auto kv = KeptSequence(worker_, policy, kPrompt, kGenerated, kSalt);
  const TestExtension extension(worker_, kHeld, kHeld + 70, kSalt);
  ASSERT_TRUE(worker_.Format(policy).Extend(*kv, extension.end(), 20));
  ASSERT_TRUE(extension.Run(*kv, 64).ok());
  const kernels::DiffKvPolicy now = static_cast<DiffKvSequence&>(*kv).policy(0);
  const int32_t end = extension.end();
  using kernels::UnobservedRange;
  EXPECT_EQ(std::vector(now.unobserved, now.unobserved + now.unobserved_count),
            (std::vector<UnobservedRange>{{.begin = 0, .end = kPrompt - 64},
                                          {kPrompt, kHeld, 2},
                                          {.begin = kHeld, .end = end - 64},
                                          {end, INT32_MAX, 2}}));
  for (int32_t position = end; position < end + 20; ++position) {
    const double before = ScoreSum(*kv);
    ASSERT_TRUE(Decode(*kv, position, 1, kSalt).ok());
    EXPECT_EQ(ScoreSum(*kv) > before, (position + 1) % 4 == 0) << position;
  }
}

// Every page is free or owned by one sequence, once: in a page table or leased.
TEST_F(DiffKvExtendTest, PagesAreExactAtEveryStepOfAConversation) {
  const std::string policy = "diffkv:ah=1.45,al=1.25,w=16";
  std::vector<std::unique_ptr<EncodedKv>> all;
  all.push_back(KeptSequence(worker_, policy, kPrompt, kGenerated, kSalt));
  all.push_back(KeptSequence(worker_, policy, 50, 3, kSalt));
  const PagePool& pool = CodecOf(*all[0]).pool();
  const auto page_bytes = static_cast<int64_t>(CodecOf(*all[0]).geometry().page_bytes());
  const auto expect_exact = [&] {
    std::set<PageId> seen;
    for (const auto& kv : all) {
      auto& sequence = static_cast<DiffKvSequence&>(*kv);
      const size_t before = seen.size();
      const kernels::DiffKvLease& lease = sequence.lease();
      seen.insert(lease.ids + lease.used, lease.ids + lease.count);
      const auto leased = static_cast<int64_t>(seen.size() - before);
      ASSERT_EQ(leased, lease.count - lease.used);
      int64_t held = 0;
      for (int32_t layer = 0; layer < kTestLayers; ++layer) {
        const kernels::DiffKvLayer tables = sequence.layer(layer);
        for (int32_t head = 0; head < kTestKvHeads; ++head) {
          for (const int32_t tier : {kDiffKvHigh, kDiffKvLow}) {
            const int32_t pages =
                CodecOf(*kv).geometry().pages_for(tier, kernels::DiffKvCount(tables, head, tier));
            for (int32_t page = 0; page < pages; ++page, ++held) {
              ASSERT_TRUE(seen.insert(kernels::DiffKvPageId(tables, head, tier, page)).second);
            }
          }
        }
      }
      const int64_t table_bytes = int64_t{kTestLayers} * kTestKvHeads *
                                  (sequence.layer(0).columns + kernels::kDiffKvTiers) * 4;
      ASSERT_EQ(kv->ReservedBytes(), (held + leased) * page_bytes);
      ASSERT_EQ(kv->ResidentBytes(), held * page_bytes + table_bytes);
    }
    ASSERT_EQ(static_cast<int64_t>(seen.size()) + pool.pages_free(), pool.pages_total());
    for (const PageId id : seen) ASSERT_EQ(pool.references(id), 1);
  };
  int32_t held[] = {kHeld, 53};
  for (const int32_t tokens : {90, 1, 33, 64}) {
    for (size_t i = 0; i < all.size(); ++i) {
      ASSERT_NO_FATAL_FAILURE(expect_exact());
      EXPECT_EQ(static_cast<DiffKvSequence&>(*all[i]).lease().count,
                static_cast<DiffKvSequence&>(*all[i]).lease().used)
          << "a kept sequence has pages that it does not use";
      const TestExtension extension(worker_, held[i], held[i] + tokens, kSalt);
      ASSERT_TRUE(worker_.Format(policy).Extend(*all[i], extension.end(), 12));
      ASSERT_NO_FATAL_FAILURE(expect_exact());
      ASSERT_TRUE(extension.Run(*all[i], 64).ok());
      ASSERT_NO_FATAL_FAILURE(expect_exact());
      all[i]->Trim();
      for (int32_t step = 0; step < 12; ++step) {
        ASSERT_NO_FATAL_FAILURE(expect_exact());
        ASSERT_TRUE(DecodeStep({all[i].get()}, {extension.end() + step}, {kSalt}).ok());
      }
      held[i] = extension.end() + 12;
      all[i]->Shrink();
    }
  }
  ASSERT_NO_FATAL_FAILURE(expect_exact());
  all.clear();
  EXPECT_EQ(worker_.Format(policy).pool().free, worker_.Format(policy).pool().total);
}

}  // namespace
}  // namespace baton::kv
