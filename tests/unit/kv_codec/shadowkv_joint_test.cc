// Joint coefficients of the upper layers: memory, groups, what is sent.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

#include "common/kv/codec/codec_context.h"
#include "common/kv/codec/codec_set.h"
#include "common/kv/codec/encoded_format.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/kv_policy.h"
#include "common/kv/codec/shadowkv/shadowkv_map.h"
#include "kernels/core/buffer.h"
#include "kernels/core/thread_pool.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/kv_format/shadowkv.h"
#include "tests/unit/kv_codec/codec_harness.h"

namespace baton::kv {
namespace {

constexpr char kJoint[] =
    "shadowkv:rank=128,chunk=1,sel=q2,budget=0.1,outliers=0,local=32,joint=200";
constexpr char kOwn[] = "shadowkv:rank=128,chunk=1,sel=q2,budget=0.1,outliers=0,local=32";
constexpr int32_t kPrompt = 400;
constexpr int32_t kGenerated = BATON_LONG_ANSWER_TOKENS;

ShadowKvMap Map(int32_t layers, int32_t full_layers, int32_t kv_heads, int32_t joint_rank) {
  CodecContext context;
  context.dimensions = {.layers = layers, .kv_heads = kv_heads, .head_dim = 128};
  context.full_layers = full_layers;
  kernels::ShadowKvConfig config;
  config.rank = 160;
  config.kv_heads = kv_heads;
  config.head_dim = 128;
  return {context, config, joint_rank, 1000};
}

TEST(ShadowKvJointTest, GroupsAreAsWideAsAGramMatrixMayBe) {
  const ShadowKvMap eight = Map(32, 16, 8, 512);  // four layers of 1,024 columns each
  ASSERT_EQ(eight.groups().size(), 4u);
  for (int32_t layer = 0; layer < 32; ++layer) {
    EXPECT_EQ(eight.group_of(layer), layer < 16 ? -1 : (layer - 16) / 4) << layer;
    EXPECT_EQ(eight.layout(layer).config.rank, layer < 16 ? 160 : 512) << layer;
    EXPECT_EQ(eight.layout(layer).config.joint, layer >= 16) << layer;
  }
  const ShadowKvMap uneven = Map(30, 15, 8, 512);
  ASSERT_EQ(uneven.groups().size(), 4u);
  EXPECT_EQ(uneven.groups()[0].begin, 15);
  EXPECT_EQ(uneven.groups()[3].end, 30);
  const ShadowKvMap narrow = Map(4, 1, 1, 4096);
  ASSERT_EQ(narrow.groups().size(), 1u);
  EXPECT_EQ(narrow.layout(2).config.rank, 3 * 128) << "the width of the three layers' keys";
  EXPECT_EQ(narrow.layout(0).config.rank, 128);
  EXPECT_TRUE(Map(4, 2, 1, 0).groups().empty());
}

TEST(ShadowKvJointTest, CoefficientsAreStoredOnceBehindTheFirstUpperLayer) {
  const ShadowKvMap joint = ShadowKvTestMap(kJoint, kPrompt);
  const ShadowKvMap own = ShadowKvTestMap(kOwn, kPrompt);
  ASSERT_EQ(joint.groups().size(), 1u);
  const kernels::ShadowKvPromptLayout& upper = joint.layout(kTestFullLayers);
  const size_t coefficients =
      kernels::ShadowKvCoefficientLayout(upper.config, upper.coded.tokens).bytes;
  EXPECT_EQ(coefficients, (static_cast<size_t>(upper.coded.tokens) * 200 * 2 + 63) / 64 * 64);
  EXPECT_EQ(joint.used_bytes(1), upper.bytes + coefficients);
  EXPECT_EQ(joint.used_bytes(2), upper.bytes);
  EXPECT_EQ(joint.used_bytes(0), own.used_bytes(0));
  EXPECT_EQ(joint.groups()[0].coefficients, joint.prompt_begin(1) + upper.bytes);
  EXPECT_LT(ShadowKvTestMap(kJoint, 2000).prompt_bytes(),
            ShadowKvTestMap(kOwn, 2000).prompt_bytes());
  EXPECT_EQ(own.most_pages(), 1);
  EXPECT_EQ(own.page_bytes(), own.used_bytes(0));
}

TEST(ShadowKvJointTest, ModelsWithoutUpperLayersAreRefused) {
  CodecContext context;
  kernels::ThreadPool threads(1);
  kernels::Buffer workspace(1 << 16);
  context.ops = &kernels::CpuOps();
  context.exec = {.pool = &threads, .workspace = &workspace};
  context.dimensions = {.layers = 2, .kv_heads = 1, .head_dim = 64};
  context.full_layers = 2;
  context.heads = 1;
  context.rope = {.inverse_frequencies = std::vector<float>(32, 1.0f), .max_positions = 512};
  const auto codecs = CodecSet::Create(std::move(context), {.shadowkv_bytes = 1 << 22});
  const KvFormatPolicy policy = CodecWorker::Parse(kJoint);
  const absl::Status status =
      (*codecs)->Find(policy.id())->Check(policy.resident, kPrompt, kPrompt, 1);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_NE(status.message().find("joint"), std::string::npos) << status;
}

// Between whole pages lies what other sequences left there: it must not be sent.
TEST(ShadowKvJointTest, PaddingOfPagesIsZero) {
  const CodecWorker worker({.shadowkv_bytes = 8 << 20});
  Poison(worker, kJoint);
  const TestPrompt prompt(worker, kPrompt, 5);
  const auto kv = worker.Allocate(kJoint, kPrompt, 0);
  ASSERT_TRUE(prompt.Encode(*kv).ok());
  const ShadowKvMap map = ShadowKvTestMap(kJoint, kPrompt);
  for (int32_t layer = 0; layer < kTestLayers; ++layer) {
    const auto pages = EncodedPages(*kv, layer);
    ASSERT_EQ(pages.size(), static_cast<size_t>(map.pages(layer)));
    const std::byte* begin = pages.front().data();
    const std::byte* end = pages.back().data() + pages.back().size();
    EXPECT_TRUE(std::all_of(begin + map.used_bytes(layer), end, [](std::byte byte) {
      return byte == std::byte{0};
    })) << layer;
  }
}

TEST(ShadowKvJointTest, LongAnswersAreReportedByteForByte) {
  const CodecWorker worker({.shadowkv_bytes = 32 << 20});
  const TestPrompt prompt(worker, kPrompt, 6);
  const auto kv = worker.Allocate(kJoint, kPrompt, kGenerated);
  ASSERT_TRUE(prompt.Encode(*kv).ok());
  const ShadowKvMap map = ShadowKvTestMap(kJoint, kPrompt);
  const PoolBytes pool = worker.Format(kJoint).pool();
  const auto prompt_bytes = static_cast<int64_t>(map.prompt_bytes());
  EXPECT_EQ(kv->ResidentBytes(), prompt_bytes);
  for (int32_t step = 0; step < kGenerated; ++step) {
    ASSERT_TRUE(DecodeStep({kv.get()}, {kPrompt + step}, {6}).ok()) << step;
    // 64 exact tokens wait, 64 are the window, in slots of keys and values of three layers; the
    // rest is in blocks.
    const kernels::ShadowKvTailLayout lower(map.layout(0), kGenerated);
    const kernels::ShadowKvTailLayout upper(map.layout(1), kGenerated);
    const int64_t blocks = lower.BlocksAt(kPrompt + step + 1);
    ASSERT_EQ(blocks, upper.BlocksAt(kPrompt + step + 1));
    const int64_t slots = std::min<int64_t>(step + 1, lower.exact_slots);
    const auto block_bytes =
        static_cast<int64_t>(lower.block.bytes + 2 * upper.block.bytes +
                             kernels::ShadowKvCoefficientLayout(map.layout(1).config, 64).bytes);
    const auto slot_bytes = static_cast<int64_t>(3 * lower.slot_bytes());
    ASSERT_EQ(kv->ResidentBytes(), prompt_bytes + slots * slot_bytes + blocks * block_bytes)
        << step;
    ASSERT_LE(kv->ResidentBytes(), kv->ReservedBytes()) << step;
    ASSERT_EQ(worker.Format(kJoint).pool().free, pool.free) << step;
  }
}

// Two upper layers of 128 columns: rank 256 leaves nothing out.
TEST(ShadowKvJointTest, AllDirectionsAnswerLikeFactorsOfEachLayer) {
  const std::string whole =
      "shadowkv:rank=128,chunk=1,sel=q2,budget=0.2,outliers=0,local=32,v=bf16";
  const CodecWorker worker({.shadowkv_bytes = 32 << 20});
  const TestPrompt prompt(worker, kPrompt, 7);
  std::vector<std::vector<float>> outputs;
  for (const std::string& policy : {whole, whole + ",joint=256"}) {
    const auto kv = worker.Allocate(policy, kPrompt, 300);
    ASSERT_TRUE(prompt.Encode(*kv).ok());
    const auto out = Decode(*kv, kPrompt, 300, 7);
    ASSERT_TRUE(out.ok()) << out.status();
    outputs.push_back(*out);
  }
  double worst = 0.0;
  for (size_t i = 0; i < outputs[0].size(); ++i) {
    worst = std::max(worst, std::fabs(double{outputs[0][i]} - double{outputs[1][i]}));
  }
  EXPECT_LT(worst, 0.05);
}

}  // namespace
}  // namespace baton::kv
