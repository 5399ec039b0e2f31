// Extensions in formats fp8 and shadowkv against their definition, written out.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "common/kv/codec/encoded_format.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/fp8/fp8_codec.h"
#include "common/kv/codec/fp8/fp8_sequence.h"
#include "common/kv/codec/shadowkv/shadowkv_codec.h"
#include "common/kv/codec/shadowkv/shadowkv_sequence.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/float8.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/kv_format/dense.h"
#include "kernels/ops/op_table.h"
#include "kernels/ops/params.h"
#include "kernels/ops/shadowkv_params.h"
#include "tests/unit/kv_codec/codec_harness.h"
#include "tests/unit/kv_codec/extension_harness.h"
#include "tests/unit/kv_codec/plain_attention.h"

namespace baton::kv {
namespace {

constexpr int32_t kPrompt = 300;
constexpr int32_t kGenerated = 37;  // the extension begins inside a page of every size
constexpr int32_t kHeld = kPrompt + kGenerated;
constexpr uint32_t kSalt = 5;
constexpr int32_t kGroup = kTestHeads / kTestKvHeads;

std::vector<PlainToken> Fp8Tokens(const Fp8Sequence& sequence,
                                  int32_t layer,
                                  int32_t kv_head,
                                  int64_t count) {
  const kernels::DensePages pages = static_cast<Fp8Codec&>(sequence.codec()).pages();
  std::vector<PlainToken> tokens;
  for (int64_t position = 0; position < count; ++position) {
    const auto slot = static_cast<int32_t>(position % pages.layout.page_tokens);
    const auto id =
        static_cast<size_t>(sequence.page_table(layer)[position / pages.layout.page_tokens]);
    const std::byte* page = pages.base + id * pages.layout.stride_bytes();
    PlainToken token = {.position = position};
    const auto read = [&](size_t codes, size_t scale, std::vector<double>& into) {
      for (size_t i = 0; i < kTestHeadDim; ++i) {
        const auto code = std::to_integer<uint8_t>(page[codes + i]);
        into.push_back(double{kernels::F8E4M3ToF32(code)} *
                       double{*reinterpret_cast<const float*>(page + scale)});
      }
    };
    read(pages.layout.key_offset(kv_head, slot),
         pages.layout.key_scale_offset(kv_head, slot),
         token.key);
    read(pages.layout.value_offset(kv_head, slot),
         pages.layout.value_scale_offset(kv_head, slot),
         token.value);
    tokens.push_back(token);
  }
  return tokens;
}

TEST(ExtendReferenceTest, Fp8AttendsToItsPagesAndTheExactNewTokens) {
  const CodecWorker worker;
  for (const TestReaders& readers :
       {TestReaders{}, TestReaders{.sliding_window = 9}, TestReaders{.sliding_window = 200}}) {
    const auto kv = KeptSequence(worker, "fp8", kPrompt, kGenerated, kSalt);
    auto& sequence = static_cast<Fp8Sequence&>(*kv);
    const TestExtension extension(worker, kHeld, kHeld + 70, kSalt);
    ASSERT_TRUE(worker.Format("fp8").Extend(*kv, extension.end(), 3));
    std::vector<std::vector<PlainToken>> old;
    for (int32_t layer = 0; layer < kTestLayers; ++layer) {
      for (int32_t head = 0; head < kTestKvHeads; ++head) {
        old.push_back(Fp8Tokens(sequence, layer, head, kHeld));
      }
    }
    const auto out = extension.Run(*kv, 64, readers);
    ASSERT_TRUE(out.ok()) << out.status();
    for (int32_t layer = 0; layer < kTestLayers; ++layer) {
      for (int32_t head = 0; head < kTestKvHeads; ++head) {
        std::vector<PlainToken> tokens =
            old[static_cast<size_t>(int64_t{layer} * kTestKvHeads + head)];
        for (int32_t position = kHeld; position < extension.end(); ++position) {
          tokens.push_back(WorkingToken(kSalt, layer, head, position));
          const auto query = ReaderQuery(0, kSalt, layer, position);
          for (int32_t h = head * kGroup; h < (head + 1) * kGroup; ++h) {
            const PlainResult want = PlainAttention(
                query.data() + h * kTestHeadDim, position, readers.sliding_window, tokens);
            const float* got = extension.Row(*out, layer, 0, position, readers) + h * kTestHeadDim;
            for (size_t i = 0; i < kTestHeadDim; ++i) {
              ASSERT_NEAR(got[i], want.out[i], 1e-4) << "position " << position;
            }
          }
        }
        // The old tokens are untouched, and the new ones came behind them.
        const auto now = Fp8Tokens(sequence, layer, head, extension.end());
        for (size_t t = 0; t < tokens.size(); ++t) {
          for (size_t i = 0; i < kTestHeadDim; ++i) {
            const double tolerance = t < kHeld ? 0.0 : 0.07 * std::fabs(tokens[t].key[i]) + 0.01;
            ASSERT_NEAR(now[t].key[i], tokens[t].key[i], tolerance) << "token " << t;
          }
        }
      }
    }
  }
}

constexpr const char* kShadowKv = "shadowkv:rank=48,budget=64,outliers=2,local=2";

// Selection and attention of a query over what the sequence held, by the ops of a decode step.
std::vector<float> AttendHeld(ShadowKvSequence& sequence,
                              int32_t layer,
                              const std::vector<float>& q,
                              std::vector<float>& lse) {
  auto& codec = static_cast<ShadowKvCodec&>(sequence.codec());
  kernels::ShadowKvSequence step = sequence.AtStep(layer, kHeld - 1);
  step.cache = nullptr;
  step.counters = nullptr;
  const int64_t stride = step.layout->config.budget_chunks();
  std::vector<int32_t> ids(static_cast<size_t>(kTestKvHeads * stride));
  const kernels::ExecContext& exec = codec.ExecWith(sequence.workspace_bytes());
  EXPECT_TRUE(kernels::CpuOps()
                  .shadowkv_select(exec,
                                   {.q = q.data(),
                                    .q_stride = kTestQueryWidth,
                                    .sequences = &step,
                                    .num_sequences = 1,
                                    .heads = kTestHeads,
                                    .scale = kTestScale,
                                    .chunk_ids = ids.data(),
                                    .chunk_ids_stride = stride})
                  .ok());
  std::vector<float> out(kTestQueryWidth);
  lse.assign(kTestHeads, -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(kernels::CpuOps()
                  .shadowkv_attention(exec,
                                      {.q = q.data(),
                                       .q_stride = kTestQueryWidth,
                                       .sequences = &step,
                                       .num_sequences = 1,
                                       .heads = kTestHeads,
                                       .scale = kTestScale,
                                       .chunk_ids = ids.data(),
                                       .chunk_ids_stride = stride,
                                       .rope = codec.rope(),
                                       .out = out.data(),
                                       .out_stride = kTestQueryWidth,
                                       .lse = lse.data()})
                  .ok());
  return out;
}

TEST(ExtendReferenceTest, ShadowKvSelectsForEveryNewTokenAsADecodeStepWould) {
  const CodecWorker worker;
  const auto kv = KeptSequence(worker, kShadowKv, kPrompt, kGenerated, kSalt);
  auto& sequence = static_cast<ShadowKvSequence&>(*kv);
  const TestExtension extension(worker, kHeld, kHeld + 90, kSalt);
  ASSERT_TRUE(worker.Format(kShadowKv).Extend(*kv, extension.end(), 0));
  std::vector<std::vector<float>> held;
  std::vector<std::vector<float>> held_lse;
  for (int32_t layer = 0; layer < kTestLayers; ++layer) {
    for (int32_t position = kHeld; position < extension.end(); ++position) {
      const auto query = ReaderQuery(0, kSalt, layer, position);
      held.push_back(AttendHeld(sequence, layer, query, held_lse.emplace_back()));
    }
  }
  const int64_t before = kv->counters().attended_tokens;
  const auto out = extension.Run(*kv, 64);
  ASSERT_TRUE(out.ok()) << out.status();
  EXPECT_GT(kv->counters().attended_tokens, before);
  size_t row = 0;
  for (int32_t layer = 0; layer < kTestLayers; ++layer) {
    std::vector<std::vector<PlainToken>> fresh(kTestKvHeads);
    for (int32_t position = kHeld; position < extension.end(); ++position, ++row) {
      const auto query = ReaderQuery(0, kSalt, layer, position);
      for (int32_t h = 0; h < kTestHeads; ++h) {
        std::vector<PlainToken>& tokens = fresh[static_cast<size_t>(h / kGroup)];
        if (h % kGroup == 0) {
          tokens.push_back(WorkingToken(kSalt, layer, h / kGroup, position));
        }
        const PlainResult own =
            PlainAttention(query.data() + h * kTestHeadDim, position, 0, tokens);
        const double old_lse = held_lse[row][static_cast<size_t>(h)];
        const double old_share = 1.0 / (1.0 + std::exp(own.lse - old_lse));
        const float* got = extension.Row(*out, layer, 0, position, {}) + h * kTestHeadDim;
        for (size_t i = 0; i < kTestHeadDim; ++i) {
          const double old_out = held[row][static_cast<size_t>(h) * kTestHeadDim + i];
          ASSERT_NEAR(got[i], old_share * old_out + (1.0 - old_share) * own.out[i], 1e-4)
              << "layer " << layer << " position " << position;
        }
      }
    }
  }
}

// The same tokens decoded one by one leave the same tail.
TEST(ExtendReferenceTest, ShadowKvTakesNewTokensInLikeGeneratedOnes) {
  const CodecWorker worker;
  for (const char* policy :
       {kShadowKv, "shadowkv:rank=20,chunk=4,budget=32,gen=exact,v=v4,a=int8"}) {
    const auto extended = KeptSequence(worker, policy, kPrompt, kGenerated, kSalt);
    const auto decoded = KeptSequence(worker, policy, kPrompt, kGenerated, kSalt);
    const TestExtension extension(worker, kHeld, kHeld + 200, kSalt);
    for (EncodedKv* kv : {extended.get(), decoded.get()}) {
      ASSERT_TRUE(worker.Format(policy).Extend(*kv, extension.end(), 20));
    }
    ASSERT_TRUE(extension.Run(*extended, 64).ok());
    ASSERT_TRUE(Decode(*decoded, kHeld, 200, kSalt).ok());
    EXPECT_EQ(extended->tokens(), decoded->tokens());
    EXPECT_EQ(extended->ResidentBytes(), decoded->ResidentBytes());
    const auto want = Decode(*decoded, extension.end(), 20, kSalt);
    const auto got = Decode(*extended, extension.end(), 20, kSalt);
    ASSERT_TRUE(want.ok() && got.ok()) << want.status() << got.status();
    EXPECT_EQ(*got, *want);
  }
}

}  // namespace
}  // namespace baton::kv
