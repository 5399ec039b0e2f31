// What Forward reports and refuses.
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/kv/codec/dense_step_kv.h"
#include "common/model/validate_batch.h"
#include "kernels/select.h"
#include "tests/unit/model/model_harness.h"
#include "tests/unit/model/test_checkpoint.h"

namespace baton::model {
namespace {

using checkpoint::Architecture;
using testing::HasSubstr;

TEST(ForwardTest, ReportsEveryLayerOfAPlainModel) {
  const auto checkpoint = MakeTestCheckpoint(SmallConfig(Architecture::kLlama, 3), 1);
  ModelHarness harness(*checkpoint, kernels::CpuOps(), {});
  std::vector<std::pair<int32_t, int32_t>> written;
  std::vector<std::pair<int32_t, int64_t>> hidden;
  harness.on_kv_layers_written = [&](int32_t begin, int32_t end) {
    written.emplace_back(begin, end);
  };
  harness.on_hidden = [&](int32_t layer, std::span<const float> x, int64_t rows) {
    hidden.emplace_back(layer, rows);
    EXPECT_EQ(x.size(), 7u * 48u);
  };
  harness.Step({{0, RandomTokens(1, 7, 61), {}, {6}}});
  EXPECT_EQ(written, (std::vector<std::pair<int32_t, int32_t>>{{0, 1}, {1, 2}, {2, 3}}));
  EXPECT_EQ(hidden, (std::vector<std::pair<int32_t, int64_t>>{{0, 7}, {1, 7}, {2, 7}, {3, 7}}));
}

TEST(ForwardTest, EmptyStepIsFine) {
  const auto checkpoint = MakeTestCheckpoint(SmallConfig(Architecture::kLlama, 1), 1);
  ModelHarness harness(*checkpoint, kernels::CpuOps(), {});
  EXPECT_TRUE(harness.Step({}).empty());
}

TEST(ForwardTest, KvShapeCountsStoredLayers) {
  const auto checkpoint = MakeTestCheckpoint(SmallSwiftKvConfig(Architecture::kLlama, 6, 2, 2), 1);
  ModelHarness harness(*checkpoint, kernels::CpuOps(), {});
  EXPECT_EQ(harness.model().kv_shape(), (KvShape{.layers = 4, .kv_heads = 2, .head_dim = 16}));
}

// A valid two-sequence batch that a test then breaks.
class ValidateBatchTest : public testing::Test {
 protected:
  ValidateBatchTest() {
    batch_.token_ids = tokens_;
    batch_.positions = positions_;
    batch_.sequences = sequences_;
    batch_.survivors = survivors_;
    batch_.logit_rows = logit_rows_;
    batch_.kv = &kv_;
  }
  void ExpectRefused(const char* message, size_t logits_size = 61) {
    const absl::Status status = ValidateBatch(batch_, config_, options_, logits_size);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }

  const checkpoint::ModelConfig config_ = SmallSwiftKvConfig(Architecture::kLlama, 4, 2, 1);
  const kernels::ExecContext exec_;
  ModelOptions options_ = {.max_step_rows = 5, .max_logit_rows = 2};
  std::vector<int32_t> tokens_ = {1, 2, 3, 60};
  std::vector<int32_t> positions_ = {0, 1, 2, 9};
  std::vector<SequenceSlice> sequences_ = {{0, 3}, {3, 1}};
  std::vector<int32_t> survivors_ = {2, 3};
  std::vector<int32_t> logit_rows_ = {3};
  kv::DenseStepKv kv_{kernels::ReferenceOps(), exec_, {}, {}};
  ForwardBatch batch_;
};

TEST_F(ValidateBatchTest, AcceptsAGoodBatch) {
  EXPECT_TRUE(ValidateBatch(batch_, config_, options_, 61).ok());
}

TEST_F(ValidateBatchTest, TokenOutsideTheVocabulary) {
  tokens_[1] = 61;
  ExpectRefused("token id 61");
  tokens_[1] = -1;
  ExpectRefused("token id -1");
}

TEST_F(ValidateBatchTest, TooManyRows) {
  options_.max_step_rows = 3;
  ExpectRefused("max_step_rows");
}

TEST_F(ValidateBatchTest, TooManyLogitRows) {
  options_.max_logit_rows = 0;
  ExpectRefused("max_logit_rows");
}

TEST_F(ValidateBatchTest, PositionsThatDoNotAscend) {
  positions_[2] = 1;
  ExpectRefused("ascend");
  positions_ = {-1, 1, 2, 9};
  ExpectRefused("ascend");
}

TEST_F(ValidateBatchTest, SequencesThatDoNotCoverTheRows) {
  sequences_[1].row_begin = 2;
  ExpectRefused("cover");
  sequences_[1] = {3, 2};
  ExpectRefused("cover");
  sequences_[1] = {3, 0};
  ExpectRefused("without a sequence");
}

TEST_F(ValidateBatchTest, RowListsOutOfOrderOrRange) {
  survivors_ = {3, 2};
  ExpectRefused("survivors");
  survivors_ = {2, 4};
  ExpectRefused("survivors");
  survivors_ = {2, 3};
  logit_rows_ = {1};
  ExpectRefused("not among the survivors");
}

TEST_F(ValidateBatchTest, WrongLogitsSizeOrNoPlaceForTheKv) {
  ExpectRefused("wrong size", 60);
  batch_.kv = nullptr;
  ExpectRefused("place for its KV");
}

}  // namespace
}  // namespace baton::model
