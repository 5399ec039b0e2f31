// What a calibration says about single layers: floors of diffkv, budgets of shadowkv.
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

#include "common/kv/codec/codec_context.h"
#include "common/kv/codec/codec_set.h"
#include "common/kv/codec/diffkv/diffkv_sequence.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/kv_calibration.h"
#include "kernels/core/memory.h"
#include "kernels/core/step_arrays.h"
#include "kernels/kv_format/diffkv.h"
#include "kernels/kv_format/shadowkv.h"
#include "tests/unit/kv_codec/codec_harness.h"

namespace baton::kv {
namespace {

constexpr int32_t kPrompt = 210;
constexpr int32_t kGenerated = 90;
constexpr CodecPools kPools = {.diffkv_bytes = 4 << 20, .shadowkv_bytes = 8 << 20};

std::shared_ptr<const KvCalibration> Floors(std::vector<KvFloor> floors) {
  KvCalibration calibration;
  calibration.diffkv_floor = std::move(floors);
  return std::make_shared<const KvCalibration>(std::move(calibration));
}

std::shared_ptr<const KvCalibration> Budgets(std::vector<float> weights) {
  KvCalibration calibration;
  calibration.shadowkv_budget = std::move(weights);
  return std::make_shared<const KvCalibration>(std::move(calibration));
}

// Tokens of a layer in the high and the low tier and tokens pruned, over its heads.
std::array<int64_t, 3> TokensByTier(const EncodedKv& kv, int32_t layer, int64_t tokens) {
  const auto counts = static_cast<const DiffKvSequence&>(kv).TierTokens(layer);
  std::array<int64_t, 3> sums = {0, 0, kTestKvHeads * tokens};
  for (size_t i = 0; i < counts.size(); ++i) {
    sums[i % kernels::kDiffKvTiers] += counts[i];
    sums[2] -= counts[i];
  }
  return sums;
}

// Policies under which every tier and pruning happen in a layer without a floor, in the prompt and
// in generation.
class DiffKvFloorTest : public testing::TestWithParam<const char*> {};

TEST_P(DiffKvFloorTest, NoTokenOfALayerEverGoesBelowItsFloor) {
  const CodecWorker worker(kPools, Floors({KvFloor::kNone, KvFloor::kLow, KvFloor::kHigh}));
  const TestPrompt prompt(worker, kPrompt, 11);
  const auto kv = worker.Allocate(GetParam(), kPrompt, kGenerated);
  ASSERT_TRUE(prompt.Encode(*kv).ok());
  for (int32_t step = 0; step <= kGenerated; ++step) {
    SCOPED_TRACE(testing::Message() << "step " << step);
    const int64_t tokens = kPrompt + step;
    const auto free = TokensByTier(*kv, 0, tokens);
    EXPECT_GT(free[kernels::kDiffKvLow], 0);
    EXPECT_GT(free[2], 0);
    const auto low = TokensByTier(*kv, 1, tokens);
    EXPECT_GT(low[kernels::kDiffKvLow], 0);
    EXPECT_EQ(low[2], 0);
    const auto high = TokensByTier(*kv, 2, tokens);
    EXPECT_EQ(high[kernels::kDiffKvHigh], kTestKvHeads * tokens);
    if (step < kGenerated) {
      ASSERT_TRUE(Decode(*kv, kPrompt + step, 1, 5).ok());
    }
  }
}

TEST_P(DiffKvFloorTest, AReceiverRefusesALayerBelowItsFloorAndChangesNothing) {
  const CodecWorker sender(kPools);
  const TestPrompt prompt(sender, kPrompt, 11);
  const auto sent = sender.Allocate(GetParam(), kPrompt, 0);
  ASSERT_TRUE(prompt.Encode(*sent).ok());
  for (const KvFloor floor : {KvFloor::kLow, KvFloor::kHigh}) {
    const CodecWorker receiver(kPools, Floors({KvFloor::kNone, floor, KvFloor::kNone}));
    const auto landed = receiver.Allocate(GetParam(), kPrompt, kGenerated);
    const int64_t resident = landed->ResidentBytes();
    EXPECT_EQ(landed->Adopt(sent->State(), kTestLayers).code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(landed->ResidentBytes(), resident);
  }
}

TEST_P(DiffKvFloorTest, APromptWithFloorsLandsAtAReceiverWithThem) {
  const auto floors = Floors({KvFloor::kNone, KvFloor::kLow, KvFloor::kHigh});
  const CodecWorker sender(kPools, floors);
  const CodecWorker receiver(kPools, floors);
  const TestPrompt prompt(sender, kPrompt, 11);
  const auto stays = sender.Allocate(GetParam(), kPrompt, kGenerated);
  ASSERT_TRUE(prompt.Encode(*stays).ok());
  const auto landed = receiver.Allocate(GetParam(), kPrompt, kGenerated);
  Ship(*stays, *landed, sender.Window(GetParam(), kPrompt));
  ASSERT_TRUE(landed->Adopt(stays->State(), kTestLayers).ok());
  EXPECT_EQ(*Decode(*landed, kPrompt, kGenerated, 5), *Decode(*stays, kPrompt, kGenerated, 5));
}

INSTANTIATE_TEST_SUITE_P(Policies,
                         DiffKvFloorTest,
                         testing::Values("diffkv:ah=1.45,al=1.25,w=16",
                                         "diffkv:ah=1.45,al=1.25,w=16,policy=paper",
                                         "diffkv:ah=1.5,al=1,w=0,score=all,base=i,sinks=3"),
                         [](const auto& instance) { return std::to_string(instance.index); });

TEST(CalibrationDigestTest, OnlyFloorsShapeWhatIsHandedOver) {
  const auto digest = [](std::shared_ptr<const KvCalibration> calibration, const char* policy) {
    return CodecWorker(kPools, std::move(calibration)).Format(policy).calibration_digest();
  };
  const std::vector<KvFloor> floors = {KvFloor::kNone, KvFloor::kNone, KvFloor::kHigh};
  EXPECT_EQ(digest(nullptr, "diffkv"), 0u);
  EXPECT_EQ(digest(Budgets({1, 1, 1}), "diffkv"), 0u);
  EXPECT_NE(digest(Floors(floors), "diffkv"), 0u);
  EXPECT_EQ(digest(Floors(floors), "shadowkv"), 0u);
  EXPECT_EQ(digest(Budgets({0.5f, 1, 1.5f}), "shadowkv"), 0u);
}

TEST(CalibrationListTest, AListForAnotherNumberOfLayersIsRefused) {
  for (const auto& calibration : {Floors({KvFloor::kHigh}), Budgets({1, 1, 1, 1})}) {
    CodecContext context;
    context.dimensions = {.layers = kTestLayers, .kv_heads = 1, .head_dim = 64};
    context.calibration = calibration;
    EXPECT_EQ(CodecSet::Create(std::move(context), {}).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

// Tokens that one decode step attends in each layer, mean over KV heads.
std::vector<int64_t> AttendedByLayer(const CodecWorker& worker, EncodedKv& kv) {
  std::vector<int64_t> attended;
  const std::vector<float> zeros(kTestQueryWidth);
  std::vector<float> out(kTestQueryWidth);
  const std::array<DecodeRow, 1> row = {{{.kv = &kv, .row = 0, .position = kPrompt}}};
  kernels::StepArrays arrays(kernels::HostMemory());
  const auto rows = kv.codec().Prepare(row, arrays);
  EXPECT_TRUE(rows.ok()) << rows.status();
  for (int32_t layer = 0; layer < kTestLayers; ++layer) {
    const int64_t before = kv.counters().attended_tokens;
    EXPECT_TRUE(
        (*rows)
            ->Append(
                {.kv_layer = layer, .k = zeros.data(), .v = zeros.data(), .stride = kTestKvWidth})
            .ok());
    EXPECT_TRUE((*rows)
                    ->Attend({.kv_layer = layer,
                              .q = zeros.data(),
                              .q_stride = kTestQueryWidth,
                              .heads = kTestHeads,
                              .scale = kTestScale,
                              .out = out.data(),
                              .out_stride = kTestQueryWidth})
                    .ok());
    attended.push_back((kv.counters().attended_tokens - before) / kTestKvHeads);
  }
  EXPECT_NE(worker.codecs, nullptr);
  return attended;
}

TEST(ShadowKvBudgetTest, EveryLayerSelectsItsShareOfTheBudget) {
  constexpr const char* kPolicy = "shadowkv:rank=32,chunk=4,budget=40,outliers=2,local=2,sink=1";
  // Static chunks, the local window and the new token come on top of the budget.
  const auto beside =
      static_cast<int64_t>(3 * 4 + ShadowKvLayout(kPolicy, kPrompt).local_tokens + 1);
  const CodecWorker worker(kPools, Budgets({1.5f, 0.1f, 1.4f}));
  const TestPrompt prompt(worker, kPrompt, 13);
  const auto kv = worker.Allocate(kPolicy, kPrompt, kGenerated);
  ASSERT_TRUE(prompt.Encode(*kv).ok());
  EXPECT_EQ(AttendedByLayer(worker, *kv),
            (std::vector<int64_t>{60 + beside, 4 + beside, 56 + beside}));
}

TEST(ShadowKvBudgetTest, EqualWeightsChangeNothing) {
  constexpr const char* kPolicy = "shadowkv:rank=32,chunk=4,budget=40,outliers=2,local=2";
  const CodecWorker plain(kPools);
  const CodecWorker weighted(kPools, Budgets({1, 1, 1}));
  std::vector<std::vector<float>> outputs;
  for (const CodecWorker* worker : {&plain, &weighted}) {
    const TestPrompt prompt(*worker, kPrompt, 13);
    const auto kv = worker->Allocate(kPolicy, kPrompt, kGenerated);
    ASSERT_TRUE(prompt.Encode(*kv).ok());
    outputs.push_back(*Decode(*kv, kPrompt, kGenerated, 5));
  }
  EXPECT_EQ(outputs[0], outputs[1]);
}

// The budget is decode's business alone.
TEST(ShadowKvBudgetTest, APromptOfASenderWithoutWeightsAttendsAsTheReceiversSay) {
  constexpr const char* kPolicy = "shadowkv:rank=32,chunk=4,budget=40,outliers=2,local=2";
  const CodecWorker sender(kPools);
  const CodecWorker receiver(kPools, Budgets({2, 0.5f, 0.5f}));
  const TestPrompt prompt(sender, kPrompt, 13);
  const auto sent = sender.Allocate(kPolicy, kPrompt, 0);
  ASSERT_TRUE(prompt.Encode(*sent).ok());
  const auto landed = receiver.Allocate(kPolicy, kPrompt, kGenerated);
  EXPECT_EQ(sender.Window(kPolicy, kPrompt), receiver.Window(kPolicy, kPrompt));
  Ship(*sent, *landed, sender.Window(kPolicy, kPrompt));
  ASSERT_TRUE(landed->Adopt(sent->State(), kTestLayers).ok());
  const auto stays = receiver.Allocate(kPolicy, kPrompt, kGenerated);
  ASSERT_TRUE(prompt.Encode(*stays).ok());
  EXPECT_EQ(*Decode(*landed, kPrompt, kGenerated, 5), *Decode(*stays, kPrompt, kGenerated, 5));
}

}  // namespace
}  // namespace baton::kv
