// Sequences in every encoded format that are kept and go on with more prompt tokens.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"

#include "common/kv/codec/encoded_format.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/packed_step_kv.h"
#include "common/kv/codec/step_kv.h"
#include "kernels/core/memory.h"
#include "kernels/core/step_arrays.h"
#include "kernels/cpu/cpu_ops.h"
#include "tests/unit/kv_codec/codec_harness.h"
#include "tests/unit/kv_codec/extension_harness.h"

namespace baton::kv {
namespace {

constexpr int32_t kPrompt = 333;
constexpr int32_t kGenerated = 30;
constexpr int32_t kHeld = kPrompt + kGenerated;
constexpr uint32_t kSalt = 21;

class ExtendTest : public testing::TestWithParam<const char*> {
 protected:
  ExtendTest() { Poison(worker_, policy()); }
  static const char* policy() { return GetParam(); }
  EncodedFormat& format() const { return worker_.Format(policy()); }
  std::unique_ptr<EncodedKv> Kept() const {
    return KeptSequence(worker_, policy(), kPrompt, kGenerated, kSalt);
  }
  // The sequence's pages, as far as they would be sent. In format fp8, slots behind the last
  // token hold what another sequence left there: without the last page.
  static std::vector<std::vector<std::byte>> Bytes(const EncodedKv& kv) {
    std::vector<std::vector<std::byte>> bytes;
    for (int32_t layer = 0; layer < kTestLayers; ++layer) {
      for (const std::span<const std::byte> page : EncodedPages(kv, layer)) {
        bytes.emplace_back(page.begin(), page.end());
      }
      if (std::string_view(policy()) == "fp8") {
        bytes.pop_back();
      }
    }
    return bytes;
  }
  void ExpectExactMemory(const EncodedKv& kv) const {
    const PoolBytes pool = format().pool();
    EXPECT_EQ(pool.total - pool.free, kv.ReservedBytes());
  }

  CodecWorker worker_;
};

TEST_P(ExtendTest, HowAnExtensionIsCutDoesNotMatter) {
  for (const TestReaders& readers :
       {TestReaders{}, TestReaders{.count = 2}, TestReaders{.sliding_window = 50}}) {
    for (const int32_t tokens : {1, 50, 150}) {
      SCOPED_TRACE(testing::Message() << readers.count << " readers, window "
                                      << readers.sliding_window << ", " << tokens << " tokens");
      const TestExtension extension(worker_, kHeld, kHeld + tokens, kSalt);
      std::unique_ptr<EncodedKv> whole;
      std::vector<float> want;
      std::vector<float> want_next;
      for (const int32_t piece : {1000, 64, 7, 1}) {
        auto kv = Kept();
        ASSERT_TRUE(format().Extend(*kv, extension.end(), 20));
        const auto got = extension.Run(*kv, piece, readers);
        ASSERT_TRUE(got.ok()) << got.status();
        EXPECT_EQ(kv->tokens(), extension.end());
        const auto state = kv->State();
        const auto bytes = Bytes(*kv);
        if (whole == nullptr) {
          want = *got;
          whole = std::move(kv);
        } else {
          ASSERT_EQ(*got, want) << "pieces of " << piece;
          EXPECT_EQ(state, whole->State());
          EXPECT_TRUE(bytes == Bytes(*whole)) << "pieces of " << piece;
          const auto next = Decode(*kv, extension.end(), 20, kSalt);
          ASSERT_TRUE(next.ok()) << next.status();
          if (want_next.empty()) {
            want_next = *next;
          }
          EXPECT_EQ(*next, want_next) << "what follows";
        }
      }
      const auto next = Decode(*whole, extension.end(), 20, kSalt);
      ASSERT_TRUE(next.ok()) << next.status();
      EXPECT_EQ(*next, want_next) << "what follows";
    }
  }
}

TEST_P(ExtendTest, MemoryIsExactOverManyTurns) {
  for (const int32_t turn_tokens : {1, 15, 64, 130}) {
    SCOPED_TRACE(turn_tokens);
    auto kv = Kept();
    ExpectExactMemory(*kv);
    int32_t held = kHeld;
    for (int32_t turn = 0; turn < 8; ++turn) {
      SCOPED_TRACE(testing::Message() << "turn " << turn);
      const int64_t kept_bytes = kv->ReservedBytes();
      const int32_t generated = 1 + 9 * turn;
      const TestExtension extension(worker_, held, held + turn_tokens, kSalt + 1);
      ASSERT_TRUE(format().Extend(*kv, extension.end(), generated));
      EXPECT_EQ(kv->tokens(), held);
      ExpectExactMemory(*kv);
      const auto out = extension.Run(*kv, 64);
      ASSERT_TRUE(out.ok()) << out.status();
      kv->Trim();
      ExpectExactMemory(*kv);
      held = extension.end();
      EXPECT_EQ(kv->tokens(), held);
      const auto decoded = Decode(*kv, held, generated, kSalt + 2);
      ASSERT_TRUE(decoded.ok()) << decoded.status();
      held += generated;
      EXPECT_EQ(kv->tokens(), held);
      kv->Shrink();
      ExpectExactMemory(*kv);
      EXPECT_GE(kv->ReservedBytes(), kept_bytes) << "nothing is dropped by being kept";
      EXPECT_LE(kv->ResidentBytes(), kv->ReservedBytes() + 64 * 1024);
      const int64_t shrunk = kv->ReservedBytes();
      kv->Shrink();
      EXPECT_EQ(kv->ReservedBytes(), shrunk) << "there was more to give";
    }
    kv.reset();
    EXPECT_EQ(format().pool().free, format().pool().total);
  }
}

// The plan reserves for the worst case, so the last of max_tokens always finds its page.
TEST_P(ExtendTest, EveryPromisedTokenHasRoom) {
  for (const int32_t tokens : {1, 23, 24, 31, 32, 33, 63, 64, 65}) {
    for (const int32_t generated : {1, 33, 64, 129}) {
      auto kv = Kept();
      const TestExtension extension(worker_, kHeld, kHeld + tokens, kSalt);
      ASSERT_TRUE(format().Extend(*kv, extension.end(), generated));
      ASSERT_TRUE(extension.Run(*kv, 1000).ok());
      kv->Trim();
      const auto out = Decode(*kv, extension.end(), generated, kSalt);
      ASSERT_TRUE(out.ok()) << tokens << " + " << generated << ": " << out.status();
    }
  }
}

TEST_P(ExtendTest, AFullPoolChangesNothing) {
  const auto alone = Kept();
  const auto kv = Kept();
  const TestExtension extension(worker_, kHeld, kHeld + 100, kSalt);
  ASSERT_TRUE(format().Extend(*alone, extension.end(), 10));
  std::vector<std::unique_ptr<EncodedKv>> others;
  for (int64_t tokens = 512; tokens >= 1; tokens /= 2) {
    while (auto other = worker_.Allocate(policy(), tokens, 1)) {
      others.push_back(std::move(other));
    }
  }
  const int64_t free = format().pool().free;
  const int64_t reserved = kv->ReservedBytes();
  const auto bytes = Bytes(*kv);
  EXPECT_FALSE(format().Extend(*kv, extension.end(), 10));
  EXPECT_EQ(format().pool().free, free);
  EXPECT_EQ(kv->ReservedBytes(), reserved);
  EXPECT_EQ(kv->tokens(), kHeld);
  EXPECT_TRUE(Bytes(*kv) == bytes);
  others.clear();
  ASSERT_TRUE(format().Extend(*kv, extension.end(), 10));
  const auto got = extension.Run(*kv, 64);
  const auto want = extension.Run(*alone, 64);
  ASSERT_TRUE(got.ok() && want.ok()) << got.status() << want.status();
  EXPECT_EQ(*got, *want);
}

// A sequence without generated tokens, and one that landed, can be extended too.
TEST_P(ExtendTest, APromptAloneIsExtended) {
  const TestPrompt prompt(worker_, kPrompt, kSalt);
  const auto sender = worker_.Allocate(policy(), kPrompt, 0);
  ASSERT_TRUE(prompt.Encode(*sender).ok());
  const auto landed = worker_.Allocate(policy(), kPrompt, 0);
  Ship(*sender, *landed, worker_.Window(policy(), kPrompt));
  ASSERT_TRUE(landed->Adopt(sender->State(), kTestLayers).ok());
  landed->Shrink();
  const TestExtension extension(worker_, kPrompt, kPrompt + 80, kSalt);
  std::vector<std::vector<float>> outputs;
  for (EncodedKv* kv : {sender.get(), landed.get()}) {
    ASSERT_TRUE(format().Extend(*kv, extension.end(), 5));
    const auto out = extension.Run(*kv, 64);
    ASSERT_TRUE(out.ok()) << out.status();
    const auto next = Decode(*kv, extension.end(), 5, kSalt);
    ASSERT_TRUE(next.ok()) << next.status();
    outputs.push_back(*out);
    outputs.push_back(*next);
  }
  EXPECT_EQ(outputs[2], outputs[0]);
  EXPECT_EQ(outputs[3], outputs[1]);
  const auto copy = worker_.Allocate(policy(), kPrompt, 0);
  EXPECT_EQ(CopyPrompt(*sender, *copy).code(), absl::StatusCode::kUnimplemented);
}

// Through the step's routing, beside a prompt that is computed whole.
TEST_P(ExtendTest, AStepSendsExtensionRowsToTheirSequence) {
  constexpr int32_t kTokens = 20;
  const auto want_kv = Kept();
  const auto kv = Kept();
  const TestExtension extension(worker_, kHeld, kHeld + kTokens, kSalt);
  ASSERT_TRUE(format().Extend(*want_kv, extension.end(), 0));
  ASSERT_TRUE(format().Extend(*kv, extension.end(), 0));
  const auto want = extension.Run(*want_kv, kTokens);
  ASSERT_TRUE(want.ok()) << want.status();
  // The rows' keys and values are in the working pages already; written again, they are the same.
  PackedStepKv step(kernels::CpuOps(),
                    worker_.exec,
                    extension.working().pages,
                    {{.dense = extension.working().table,
                      .encoded = kv.get(),
                      .extension_begin = kHeld,
                      .prefill = true,
                      .completes_prompt = true}});
  std::vector<int32_t> positions(kTokens);
  std::iota(positions.begin(), positions.end(), kHeld);
  const RowRun run = {.sequence = 0, .row_begin = 0, .row_count = kTokens};
  const KvRows rows = {.rows = kTokens,
                       .runs = {&run, 1},
                       .positions = positions.data(),
                       .op_positions = positions.data()};
  kernels::StepArrays arrays(kernels::HostMemory());
  ASSERT_TRUE(step.Prepare({&rows, 1}, arrays).ok());
  ASSERT_TRUE(arrays.Upload().ok());
  for (int32_t layer = 0; layer < kTestLayers; ++layer) {
    std::vector<float> q;
    std::vector<float> k;
    std::vector<float> v;
    for (const int32_t position : positions) {
      for (const auto& [kind, width, to] :
           {std::tuple{1u, kTestKvWidth, &k}, {2u, kTestKvWidth, &v}, {3u, kTestQueryWidth, &q}}) {
        const auto values = TestFloats(width, kind, kSalt, layer, position);
        to->insert(to->end(), values.begin(), values.end());
      }
    }
    std::vector<float> out(kTokens * kTestQueryWidth);
    std::vector<float> lse(size_t{kTokens} * kTestHeads);
    ASSERT_TRUE(
        step.Write(rows, {.kv_layer = layer, .k = k.data(), .v = v.data(), .stride = kTestKvWidth})
            .ok());
    ASSERT_TRUE(step.Attend(rows,
                            {.kv_layer = layer,
                             .q = q.data(),
                             .q_stride = kTestQueryWidth,
                             .heads = kTestHeads,
                             .scale = kTestScale,
                             .out = out.data(),
                             .out_stride = kTestQueryWidth,
                             .lse = lse.data()})
                    .ok());
    ASSERT_TRUE(step.LayerAttended(layer).ok());
    EXPECT_TRUE(std::equal(out.begin(), out.end(), extension.Row(*want, layer, 0, kHeld, {})));
  }
  EXPECT_EQ(kv->tokens(), extension.end());
  EXPECT_EQ(kv->State(), want_kv->State());
  EXPECT_TRUE(Bytes(*kv) == Bytes(*want_kv));
}

INSTANTIATE_TEST_SUITE_P(
    Policies,
    ExtendTest,
    testing::Values(
        "fp8",
        "diffkv",
        "diffkv:high=k8v8,low=k4v4,ah=1.5,al=0.3,w=16,sinks=3,every=2",
        "diffkv:high=k4v4,ah=2,al=0.5,score=all,base=i,policy=paper,w=8",
        "shadowkv:rank=32,budget=64,outliers=2,local=2",
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
