// Who owns which page of format `diffkv`, at every moment.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "common/kv/codec/diffkv/diffkv_codec.h"
#include "common/kv/codec/diffkv/diffkv_sequence.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/pool/page_pool.h"
#include "kernels/kv_format/diffkv.h"
#include "kernels/ops/diffkv_pages.h"
#include "kernels/ops/diffkv_params.h"
#include "tests/unit/kv_codec/codec_harness.h"

namespace baton::kv {
namespace {

constexpr int32_t kPrompt = 333;
constexpr int32_t kGenerated = 120;

class DiffKvMemoryTest : public testing::TestWithParam<const char*> {
 protected:
  DiffKvSequence* Allocate(int64_t prompt_tokens, int64_t max_tokens) {
    sequences_.push_back(worker_.Allocate(GetParam(), prompt_tokens, max_tokens));
    EXPECT_NE(sequences_.back(), nullptr);
    lengths_.push_back(prompt_tokens + max_tokens);
    return static_cast<DiffKvSequence*>(sequences_.back().get());
  }
  void Destroy(const EncodedKv* sequence) {
    for (size_t i = 0; i < sequences_.size(); ++i) {
      if (sequences_[i].get() == sequence) {
        sequences_.erase(sequences_.begin() + static_cast<ptrdiff_t>(i));
        lengths_.erase(lengths_.begin() + static_cast<ptrdiff_t>(i));
        return;
      }
    }
    FAIL() << "no such sequence";
  }
  PagePool& pool(EncodedKv& kv) const { return static_cast<DiffKvCodec&>(kv.codec()).pool(); }

  // The pages of a sequence that are in page tables.
  static std::vector<PageId> InTables(DiffKvSequence& sequence) {
    const auto& geometry = static_cast<DiffKvCodec&>(sequence.codec()).geometry();
    std::vector<PageId> ids;
    for (int32_t kv_layer = 0; kv_layer < kTestLayers; ++kv_layer) {
      const kernels::DiffKvLayer layer = sequence.layer(kv_layer);
      for (int32_t head = 0; head < kTestKvHeads; ++head) {
        for (int32_t tier = 0; tier < kernels::kDiffKvTiers; ++tier) {
          const int32_t pages = geometry.pages_for(tier, kernels::DiffKvCount(layer, head, tier));
          for (int32_t page = 0; page < pages; ++page) {
            ids.push_back(kernels::DiffKvPageId(layer, head, tier, page));
          }
        }
      }
    }
    return ids;
  }
  static std::vector<PageId> Leased(DiffKvSequence& sequence) {
    const kernels::DiffKvLease& lease = sequence.lease();
    return {lease.ids + lease.used, lease.ids + lease.count};
  }

  // Every page of the pool is free or owned by one sequence, once: in a page table or leased.
  void ExpectExact(const char* when) {
    SCOPED_TRACE(when);
    ASSERT_FALSE(sequences_.empty());
    const PagePool& pages = pool(*sequences_.front());
    std::set<PageId> seen;
    int64_t owned = 0;
    for (size_t i = 0; i < sequences_.size(); ++i) {
      auto& sequence = static_cast<DiffKvSequence&>(*sequences_[i]);
      const std::vector<PageId> tables = InTables(sequence);
      const std::vector<PageId> leased = Leased(sequence);
      for (const std::vector<PageId>& ids : {tables, leased}) {
        for (const PageId id : ids) {
          ASSERT_TRUE(seen.insert(id).second) << "page " << id << " twice";
          ASSERT_EQ(pages.references(id), 1) << "page " << id;
        }
        owned += static_cast<int64_t>(ids.size());
      }
      const auto& geometry = static_cast<DiffKvCodec&>(sequence.codec()).geometry();
      const int64_t table_bytes = int64_t{kTestLayers} * kTestKvHeads *
                                  (geometry.columns_for(lengths_[i]) + kernels::kDiffKvTiers) * 4;
      const auto page_bytes = static_cast<int64_t>(geometry.page_bytes());
      ASSERT_EQ(sequence.ResidentBytes(),
                static_cast<int64_t>(tables.size()) * page_bytes + table_bytes);
      ASSERT_EQ(sequence.ReservedBytes(),
                static_cast<int64_t>(tables.size() + leased.size()) * page_bytes);
    }
    ASSERT_EQ(owned + pages.pages_free(), pages.pages_total());
  }
  static bool SamePages(const std::vector<std::span<const std::byte>>& a,
                        const std::vector<std::span<const std::byte>>& b) {
    return std::ranges::equal(
        a, b, [](const auto& x, const auto& y) { return std::ranges::equal(x, y); });
  }
  // Gives the excess of `sequence` back, which is what its prompt could have taken and did not.
  void ExpectTrims(DiffKvSequence& sequence, int64_t max_tokens) {
    const auto& geometry = static_cast<DiffKvCodec&>(sequence.codec()).geometry();
    const int64_t growth =
        PlanDiffKvPages(geometry, kTestLayers, 1, max_tokens).growth_pages_per_layer * kTestLayers;
    const auto leased = static_cast<int64_t>(Leased(sequence).size());
    const int64_t free = pool(sequence).pages_free();
    sequence.Trim();
    EXPECT_EQ(pool(sequence).pages_free() - free, leased - growth);
    EXPECT_EQ(static_cast<int64_t>(Leased(sequence).size()), growth);
    sequence.Trim();
    EXPECT_EQ(pool(sequence).pages_free() - free, leased - growth) << "there was more to give";
  }

  CodecWorker worker_;
  std::vector<std::unique_ptr<EncodedKv>> sequences_;
  std::vector<int64_t> lengths_;
};

TEST_P(DiffKvMemoryTest, EveryPageIsOwnedOnceInEveryLife) {
  const TestPrompt prompt(worker_, kPrompt, 1);
  DiffKvSequence* local = Allocate(kPrompt, kGenerated);
  ExpectExact("made");
  for (int32_t layer = 0; layer < kTestLayers; ++layer) {
    ASSERT_TRUE(prompt.EncodeLayer(*local, layer).ok());
    ExpectExact("a layer encoded");
  }
  DiffKvSequence* sender = Allocate(kPrompt, 0);
  ASSERT_TRUE(prompt.Encode(*sender).ok());
  ExpectExact("encoded for another worker");
  DiffKvSequence* landed = Allocate(kPrompt, kGenerated);
  Ship(*sender, *landed, worker_.Window(GetParam(), kPrompt));
  EXPECT_FALSE(landed->Adopt("nonsense", kTestLayers).ok());
  ExpectExact("refused");
  ASSERT_TRUE(landed->Adopt(sender->State(), kTestLayers).ok());
  ExpectExact("adopted");
  DiffKvSequence* copy = Allocate(kPrompt, kGenerated);
  ASSERT_TRUE(CopyPrompt(*landed, *copy).ok());
  ExpectExact("copied");
  Destroy(sender);
  ExpectExact("the sender is gone");
  for (DiffKvSequence* sequence : {local, landed, copy}) {
    ExpectTrims(*sequence, kGenerated);
    ExpectExact("trimmed");
  }
  for (int32_t step = 0; step < kGenerated; ++step) {
    ASSERT_TRUE(
        DecodeStep({local, landed, copy}, std::vector<int32_t>(3, kPrompt + step), {1, 1, 2}).ok());
    ExpectExact("a token appended");
  }
  Destroy(landed);
  ExpectExact("the original of a copy is gone");
  PagePool& pages = pool(*local);
  sequences_.clear();
  EXPECT_EQ(pages.pages_free(), pages.pages_total());
}

TEST_P(DiffKvMemoryTest, TrimmedPagesServeOthersAtOnce) {
  const TestPrompt prompt(worker_, kPrompt, 2);
  DiffKvSequence* first = Allocate(kPrompt, kGenerated);
  ASSERT_TRUE(prompt.Encode(*first).ok());
  ExpectTrims(*first, kGenerated);
  // Whatever is left, to the last page.
  while (pool(*first).pages_free() > 0) {
    const int64_t free = pool(*first).pages_free();
    int64_t tokens = 1024;
    while (tokens > 0 && worker_.Allocate(GetParam(), tokens, 0) == nullptr) {
      tokens /= 2;
    }
    if (tokens == 0) {
      break;  // fewer than the smallest prompt takes
    }
    Allocate(tokens, 0);
    ASSERT_LT(pool(*first).pages_free(), free);
  }
  ExpectExact("full");
  for (int32_t step = 0; step < kGenerated; ++step) {
    ASSERT_TRUE(DecodeStep({first}, {kPrompt + step}, {2}).ok());
  }
  ExpectExact("decoded in a full pool");
}

// An answer far longer than its prompt, beside a sequence that nobody touches.
TEST_P(DiffKvMemoryTest, LongAnswersKeepEveryPageOwnedOnce) {
  constexpr int32_t kLong = BATON_LONG_ANSWER_TOKENS;
  const TestPrompt prompt(worker_, kPrompt, 3);
  DiffKvSequence* idle = Allocate(kPrompt, 0);
  ASSERT_TRUE(prompt.Encode(*idle).ok());
  DiffKvSequence* sequence = Allocate(kPrompt, kLong);
  ASSERT_TRUE(prompt.Encode(*sequence).ok());
  ExpectTrims(*sequence, kLong);
  ExpectExact("trimmed");
  const int64_t reserved = sequence->ReservedBytes();
  for (int32_t step = 0; step < kLong; ++step) {
    ASSERT_TRUE(DecodeStep({sequence}, {kPrompt + step}, {3}).ok()) << step;
    ASSERT_NO_FATAL_FAILURE(ExpectExact("a token appended")) << step;
    ASSERT_EQ(sequence->ReservedBytes(), reserved) << step;
  }
  CodecWorker other;
  const auto untouched = other.Allocate(GetParam(), kPrompt, 0);
  ASSERT_TRUE(prompt.Encode(*untouched).ok());
  for (int32_t layer = 0; layer < kTestLayers; ++layer) {
    EXPECT_TRUE(SamePages(EncodedPages(*idle, layer), EncodedPages(*untouched, layer))) << layer;
  }
  PagePool& pages = pool(*sequence);
  sequences_.clear();
  EXPECT_EQ(pages.pages_free(), pages.pages_total());
}

INSTANTIATE_TEST_SUITE_P(
    Policies,
    DiffKvMemoryTest,
    testing::Values("diffkv",
                    "diffkv:w=16,ah=2,al=0.5",
                    "diffkv:high=k8v8,low=k4v4,policy=paper,w=16,ah=2,al=0.5,every=4"),
    [](const testing::TestParamInfo<const char*>& instance) {
      return std::to_string(instance.index);
    });

}  // namespace
}  // namespace baton::kv
