// Sequences in encoded formats: prefilled here, prefilled for another worker, landed, copied.
#include "common/kv/codec/encoded_kv.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/kv/codec/encoded_format.h"
#include "common/kv/codec/policy_params.h"
#include "tests/unit/kv_codec/codec_harness.h"

namespace baton::kv {
namespace {

constexpr int32_t kPrompt = 333;
constexpr int32_t kGenerated = 200;

class EncodedKvTest : public testing::TestWithParam<const char*> {
 protected:
  EncodedKvTest() {
    Poison(here_, policy());
    Poison(there_, policy());
  }
  static const char* policy() { return GetParam(); }

  std::unique_ptr<EncodedKv> Encoded(const CodecWorker& worker,
                                     const TestPrompt& prompt,
                                     int64_t max_tokens) {
    auto kv = worker.Allocate(policy(), prompt.tokens(), max_tokens);
    EXPECT_NE(kv, nullptr);
    const absl::Status status = prompt.Encode(*kv);
    EXPECT_TRUE(status.ok()) << status;
    return kv;
  }
  // `sender` as it lands on another worker, not yet adopted.
  std::unique_ptr<EncodedKv> Landed(const EncodedKv& sender, int32_t prompt_tokens) {
    auto kv = there_.Allocate(policy(), prompt_tokens, kGenerated);
    EXPECT_NE(kv, nullptr);
    Ship(sender, *kv, there_.Window(policy(), prompt_tokens));
    return kv;
  }
  static int64_t Free(const CodecWorker& worker) { return worker.Format(policy()).pool().free; }

  CodecWorker here_;
  CodecWorker there_;
};

TEST_P(EncodedKvTest, AnAdoptedPromptAttendsLikeOneThatStayed) {
  for (const int32_t tokens : {kPrompt, 64, 1}) {
    SCOPED_TRACE(tokens);
    const TestPrompt prompt(here_, tokens, /*salt=*/1);
    const auto local = Encoded(here_, prompt, kGenerated);
    const auto sender = Encoded(here_, prompt, /*max_tokens=*/0);
    const auto landed = Landed(*sender, tokens);
    ASSERT_TRUE(landed->Adopt(sender->State(), kTestLayers).ok());
    local->Trim();
    landed->Trim();
    EXPECT_EQ(local->ResidentBytes(), landed->ResidentBytes());
    EXPECT_EQ(local->ReservedBytes(), landed->ReservedBytes());
    for (int32_t step = 0; step < kGenerated; ++step) {
      const auto want = DecodeStep({local.get()}, {tokens + step}, {1});
      const auto got = DecodeStep({landed.get()}, {tokens + step}, {1});
      ASSERT_TRUE(want.ok() && got.ok()) << want.status() << got.status();
      ASSERT_EQ(*got, *want) << "step " << step;
      ASSERT_EQ(local->ResidentBytes(), landed->ResidentBytes());
    }
    EXPECT_EQ(local->counters().attended_tokens, landed->counters().attended_tokens);
    EXPECT_EQ(local->counters().heads, int64_t{kGenerated} * kTestLayers * kTestKvHeads);
    EXPECT_EQ(local->counters().hits, landed->counters().hits);
    EXPECT_EQ(local->counters().misses, landed->counters().misses);
  }
}

TEST_P(EncodedKvTest, WhatIsSentFitsTheWindowAndIsWhatTheStateSays) {
  const WindowShape shape = here_.Window(policy(), kPrompt);
  const TestPrompt prompt(here_, kPrompt, 2);
  const auto sender = Encoded(here_, prompt, 0);
  const auto landed = Landed(*sender, kPrompt);
  const auto window = WindowPages(*landed, shape);
  ASSERT_EQ(window.size(), static_cast<size_t>(kTestLayers * shape.pages_per_layer));
  for (const std::span<std::byte> page : window) {
    EXPECT_EQ(static_cast<int64_t>(page.size()), shape.page_bytes);
  }
  const auto sent = landed->SentPages(sender->State(), kTestLayers);
  ASSERT_TRUE(sent.ok()) << sent.status();
  ASSERT_EQ(sent->size(), static_cast<size_t>(kTestLayers));
  for (int32_t layer = 0; layer < kTestLayers; ++layer) {
    const auto pages = EncodedPages(*sender, layer);
    EXPECT_EQ(static_cast<int32_t>(pages.size()), (*sent)[static_cast<size_t>(layer)]);
    EXPECT_LE(static_cast<int32_t>(pages.size()), shape.pages_per_layer);
    for (const std::span<const std::byte> page : pages) {
      EXPECT_EQ(static_cast<int64_t>(page.size()), shape.page_bytes);
    }
  }
}

TEST_P(EncodedKvTest, HowQueriesAreCutIntoCallsDoesNotMatter) {
  const TestPrompt prompt(here_, kPrompt, 3);
  const auto whole = Encoded(here_, prompt, 0);
  for (const int32_t piece : {1, 7, 64}) {
    const auto pieces = here_.Allocate(policy(), kPrompt, 0);
    ASSERT_TRUE(prompt.Encode(*pieces, piece).ok());
    EXPECT_EQ(pieces->State(), whole->State());
    for (int32_t layer = 0; layer < kTestLayers; ++layer) {
      const auto got = EncodedPages(*pieces, layer);
      const auto want = EncodedPages(*whole, layer);
      ASSERT_EQ(got.size(), want.size());
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_TRUE(std::equal(got[i].begin(), got[i].end(), want[i].begin(), want[i].end()))
            << "layer " << layer << " page " << i;
      }
    }
  }
}

TEST_P(EncodedKvTest, TokensAreHeldOnceEveryLayerHasThem) {
  const TestPrompt prompt(here_, kPrompt, 7);
  const auto local = here_.Allocate(policy(), kPrompt, kGenerated);
  for (int32_t layer = 0; layer < kTestLayers; ++layer) {
    EXPECT_EQ(local->tokens(), 0) << "layer " << layer;
    ASSERT_TRUE(prompt.EncodeLayer(*local, layer).ok());
  }
  EXPECT_EQ(local->tokens(), kPrompt);
  const auto sender = Encoded(here_, prompt, 0);
  const auto landed = Landed(*sender, kPrompt);
  EXPECT_EQ(landed->tokens(), 0);
  ASSERT_TRUE(landed->Adopt(sender->State(), kTestLayers).ok());
  EXPECT_EQ(landed->tokens(), kPrompt);
  ASSERT_TRUE(Decode(*landed, kPrompt, 3, 7).ok());
  EXPECT_EQ(landed->tokens(), kPrompt + 3);
  const auto copy = here_.Allocate(policy(), kPrompt, kGenerated);
  ASSERT_TRUE(CopyPrompt(*local, *copy).ok());
  EXPECT_EQ(copy->tokens(), kPrompt);
}

TEST_P(EncodedKvTest, ACopyIsIndependent) {
  const TestPrompt prompt(here_, kPrompt, 4);
  const auto first = Encoded(here_, prompt, kGenerated);
  const auto alone = Encoded(here_, prompt, kGenerated);
  const auto other = Encoded(here_, prompt, kGenerated);
  const auto copy = here_.Allocate(policy(), kPrompt, kGenerated);
  ASSERT_TRUE(CopyPrompt(*first, *copy).ok());
  first->Trim();
  copy->Trim();
  EXPECT_EQ(copy->ResidentBytes(), first->ResidentBytes());
  EXPECT_EQ(copy->ReservedBytes(), first->ReservedBytes());
  // In turn, with different tokens.
  for (int32_t step = 0; step < kGenerated; ++step) {
    const std::vector<int32_t> positions = {kPrompt + step, kPrompt + step};
    const auto together = DecodeStep({first.get(), copy.get()}, positions, {5, 6});
    const auto apart = DecodeStep({alone.get(), other.get()}, positions, {5, 6});
    ASSERT_TRUE(together.ok() && apart.ok()) << together.status() << apart.status();
    ASSERT_EQ(*together, *apart) << "step " << step;
  }
}

TEST_P(EncodedKvTest, ABatchGivesWhatItsSequencesGiveAlone) {
  std::vector<std::unique_ptr<EncodedKv>> batch;
  std::vector<std::unique_ptr<EncodedKv>> alone;
  std::vector<EncodedKv*> rows;
  std::vector<int32_t> positions;
  const std::vector<int32_t> lengths = {100, 65, 17};
  for (size_t i = 0; i < lengths.size(); ++i) {
    const TestPrompt prompt(here_, lengths[i], static_cast<uint32_t>(7 + i));
    batch.push_back(Encoded(here_, prompt, kGenerated));
    alone.push_back(Encoded(there_, prompt, kGenerated));
    rows.push_back(batch.back().get());
    positions.push_back(lengths[i]);
  }
  for (int32_t step = 0; step < 80; ++step) {
    const auto got = DecodeStep(rows, positions, {7, 8, 9});
    ASSERT_TRUE(got.ok()) << got.status();
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto want =
          DecodeStep({alone[i].get()}, {positions[i]++}, {static_cast<uint32_t>(7 + i)});
      ASSERT_TRUE(want.ok()) << want.status();
      for (size_t layer = 0; layer < kTestLayers; ++layer) {
        const auto begin =
            got->begin() + static_cast<ptrdiff_t>((layer * rows.size() + i) * kTestQueryWidth);
        ASSERT_TRUE(std::equal(begin,
                               begin + kTestQueryWidth,
                               want->begin() + static_cast<ptrdiff_t>(layer * kTestQueryWidth)))
            << "step " << step << " sequence " << i << " layer " << layer;
      }
    }
  }
}

TEST_P(EncodedKvTest, APoolThatIsFullNowGivesNothingAndTakesAllBack) {
  const PoolBytes before = here_.Format(policy()).pool();
  EXPECT_EQ(before.free, before.total);
  std::vector<std::unique_ptr<EncodedKv>> all;
  while (auto kv = here_.Allocate(policy(), kPrompt, kGenerated)) {
    all.push_back(std::move(kv));
    ASSERT_LT(all.size(), 1000u);
  }
  ASSERT_GT(all.size(), 1u);
  int64_t reserved = 0;
  for (const auto& kv : all) {
    reserved += kv->ReservedBytes();
  }
  EXPECT_EQ(Free(here_), before.total - reserved);
  std::swap(all.front(), all.back());
  all.pop_back();
  auto again = here_.Allocate(policy(), kPrompt, kGenerated);
  EXPECT_NE(again, nullptr);
  EXPECT_EQ(here_.Allocate(policy(), kPrompt, kGenerated), nullptr);
  all.clear();
  again.reset();
  EXPECT_EQ(Free(here_), before.total);
}

TEST_P(EncodedKvTest, CheckSaysWhatCanNeverFit) {
  const EncodedFormat& format = here_.Format(policy());
  const KvResidentPolicy resident = CodecWorker::Parse(policy()).resident;
  int32_t sequences = 0;
  std::vector<std::unique_ptr<EncodedKv>> all;
  while (auto kv = here_.Allocate(policy(), kPrompt, kGenerated)) {
    all.push_back(std::move(kv));
    ++sequences;
  }
  EXPECT_TRUE(format.Check(resident, kPrompt, kGenerated, sequences).ok());
  const absl::Status status = format.Check(resident, kPrompt, kGenerated, sequences + 1);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(std::string(status.message()).starts_with("EXCEEDS_CAPACITY")) << status;
}

TEST_P(EncodedKvTest, EveryLifeEndsWithAFullPool) {
  const TestPrompt prompt(here_, kPrompt, 10);
  for (const bool trim : {false, true}) {
    const auto sender = Encoded(here_, prompt, 0);
    auto landed = Landed(*sender, kPrompt);
    EXPECT_FALSE(landed->Adopt(sender->State() + "x", kTestLayers).ok());
    auto never_written = there_.Allocate(policy(), kPrompt, kGenerated);
    auto copy = there_.Allocate(policy(), kPrompt, kGenerated);
    ASSERT_TRUE(landed->Adopt(sender->State(), kTestLayers).ok());
    ASSERT_TRUE(CopyPrompt(*landed, *copy).ok());
    if (trim) {
      landed->Trim();
      copy->Trim();
      never_written->Trim();
    }
    ASSERT_TRUE(Decode(*landed, kPrompt, 70, 10).ok());
    landed.reset();
    ASSERT_TRUE(Decode(*copy, kPrompt, kGenerated, 11).ok());
  }
  EXPECT_EQ(Free(here_), here_.Format(policy()).pool().total);
  EXPECT_EQ(Free(there_), there_.Format(policy()).pool().total);
}

// The plan reserves for the worst case, so the last of max_tokens always finds its page.
TEST_P(EncodedKvTest, EveryPromisedTokenHasRoom) {
  for (const int32_t tokens : {1, 23, 24, 25, 31, 32, 33, 63, 64, 65}) {
    for (const int32_t generated : {1, 31, 33, 64, 65, 129}) {
      const TestPrompt prompt(here_, tokens, 12);
      const auto kv = Encoded(here_, prompt, generated);
      kv->Trim();
      const auto out = Decode(*kv, tokens, generated, 12);
      EXPECT_TRUE(out.ok()) << tokens << " + " << generated << ": " << out.status();
      EXPECT_LE(kv->ResidentBytes(), kv->ReservedBytes() + 64 * 1024);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Policies,
    EncodedKvTest,
    testing::Values(
        "fp8",
        "diffkv",
        "diffkv:high=k8v8,low=k4v4,ah=1.5,al=0.3,w=16,sinks=3,every=4",
        "diffkv:high=k4v4,ah=2,al=0.5,score=all,base=i,policy=paper,w=8",
        "diffkv:high=k4v2,low=k4v2,al=0,w=0",
        "shadowkv:rank=32,budget=64,outliers=2,local=2",
        "shadowkv:rank=32,budget=64,outliers=2,local=2,landmarks=int8",
        "shadowkv:rank=128,sel=q2,budget=0.25,outliers=0,local=1,sink=0,v=bf16",
        "shadowkv:rank=32,chunk=1,sel=q2,budget=0.1,outliers=0,local=32,a=int8,joint=160",
        "shadowkv:rank=32,budget=64,outliers=2,local=2,vplace=host",
        "shadowkv:rank=32,chunk=1,sel=q2,budget=0.1,outliers=0,local=32,joint=160,vplace=host",
        "shadowkv:rank=16,chunk=4,sel=bounds,budget=32,outliers=3,gen=exact,v=v2,"
        "joint=96",
        "shadowkv:rank=16,chunk=4,sel=bounds,budget=32,outliers=3,gen=exact,v=v2,"
        "a=int8"),
    [](const testing::TestParamInfo<const char*>& instance) {
      std::string name = instance.param;
      std::replace_if(name.begin(), name.end(), [](char c) { return std::isalnum(c) == 0; }, '_');
      return name;
    });

}  // namespace
}  // namespace baton::kv
