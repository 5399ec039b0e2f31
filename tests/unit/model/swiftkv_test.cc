// The parity checks (a) to (e) of swiftkv.md section 8.
#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "common/checkpoint/model_config.h"
#include "kernels/core/dtype.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/ops/op_table.h"
#include "kernels/reference/reference_ops.h"
#include "tests/unit/model/dense_reference.h"
#include "tests/unit/model/model_harness.h"
#include "tests/unit/model/test_checkpoint.h"

namespace baton::model {
namespace {

using checkpoint::Architecture;
using checkpoint::ModelConfig;

constexpr uint64_t kSeed = 20260101;

void ExpectClose(const std::vector<float>& actual,
                 const std::vector<double>& expected,
                 const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  double largest = 0;
  double difference = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    largest = std::max(largest, std::abs(expected[i]));
    difference = std::max(difference, std::abs(expected[i] - double{actual[i]}));
  }
  EXPECT_GT(largest, 1e-3) << what << " is empty of content";
  EXPECT_LE(difference, 2e-5 * largest) << what;
}

std::vector<double> Flatten(const std::vector<std::vector<double>>& rows) {
  std::vector<double> flat;
  for (const std::vector<double>& row : rows) {
    flat.insert(flat.end(), row.begin(), row.end());
  }
  return flat;
}

std::vector<double> Widen(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

// (a) S = L - 1 with the weights of the last layer is the plain model.
std::string StockName(const std::string& name, int32_t num_layers) {
  if (name == "model.norm_swiftkv.weight") {
    return "model.layers." + std::to_string(num_layers - 1) + ".input_layernorm.weight";
  }
  const size_t suffix = name.find("_swiftkv");
  return suffix == std::string::npos ? name : std::string(name).erase(suffix, 8);
}

struct FamilyCase {
  const char* name;
  Architecture architecture;
};

class SwiftKvFamilyTest : public testing::TestWithParam<FamilyCase> {};

TEST_P(SwiftKvFamilyTest, OneUpperLayerWithStockWeightsIsThePlainModel) {
  constexpr int32_t kLayers = 4;
  const Architecture architecture = GetParam().architecture;
  const auto plain = MakeTestCheckpoint(SmallConfig(architecture, kLayers), kSeed);
  const auto swiftkv =
      MakeTestCheckpoint(SmallSwiftKvConfig(architecture, kLayers, kLayers - 1, 1),
                         kSeed,
                         [](const std::string& name) { return StockName(name, kLayers); });
  const std::vector<int32_t> tokens = RandomTokens(3, 45, plain->config().vocab_size);
  ModelHarness expected(*plain, kernels::CpuOps(), {});
  ModelHarness actual(*swiftkv, kernels::CpuOps(), {});
  const std::vector<float> expected_logits = expected.Prefill(0, tokens, 16);
  const std::vector<float> actual_logits = actual.Prefill(0, tokens, 16);
  ExpectClose(actual_logits, Widen(expected_logits), "logits");
  ExpectClose(actual.AllCached(0), Widen(expected.AllCached(0)), "cache");
  EXPECT_EQ(actual.Greedy(0, actual_logits, 12), expected.Greedy(0, expected_logits, 12));
}

// (b) and (e): survivors only, against every token through every layer with K and V per layer.
void ExpectEqualsDenseReference(const ModelConfig& config, const kernels::OpTable& ops) {
  const auto checkpoint = MakeTestCheckpoint(config, kSeed);
  const std::vector<int32_t> tokens = RandomTokens(5, 37, config.vocab_size);
  const DenseResult dense = DenseForward(*checkpoint, tokens);
  ModelHarness harness(*checkpoint, ops, {});
  const std::vector<float> logits = harness.Prefill(0, tokens, 10);
  ExpectClose(logits, dense.logits.back(), "last logits");
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    const int32_t full = config.num_key_value_layers;
    const int32_t kv_layer =
        layer < full ? layer : full + (layer - full) / config.key_value_group_size;
    const auto index = static_cast<size_t>(layer);
    const std::string where = " of layer " + std::to_string(layer);
    ExpectClose(harness.Cached(0, kv_layer, false), Flatten(dense.keys[index]), "keys" + where);
    ExpectClose(harness.Cached(0, kv_layer, true), Flatten(dense.values[index]), "values" + where);
  }
}

TEST_P(SwiftKvFamilyTest, EqualsADenseReference) {
  const ModelConfig config = SmallSwiftKvConfig(GetParam().architecture, 5, 2, 1);
  ExpectEqualsDenseReference(config, kernels::CpuOps());
  ExpectEqualsDenseReference(config, kernels::ReferenceOps());
}

TEST_P(SwiftKvFamilyTest, SharedGroupsEqualCopiesPerLayer) {
  for (const int32_t group_size : {2, 4}) {
    SCOPED_TRACE(group_size);
    ExpectEqualsDenseReference(SmallSwiftKvConfig(GetParam().architecture, 6, 2, group_size),
                               kernels::CpuOps());
  }
}

TEST_P(SwiftKvFamilyTest, PlainModelEqualsADenseReference) {
  ExpectEqualsDenseReference(SmallConfig(GetParam().architecture, 3), kernels::CpuOps());
}

INSTANTIATE_TEST_SUITE_P(Families,
                         SwiftKvFamilyTest,
                         testing::Values(FamilyCase{"Llama", Architecture::kLlama},
                                         FamilyCase{"Qwen2", Architecture::kQwen2},
                                         FamilyCase{"Qwen3", Architecture::kQwen3},
                                         FamilyCase{"Mistral", Architecture::kMistral}),
                         [](const auto& test) { return test.param.name; });

struct OpsCase {
  const char* name;
  const kernels::OpTable& (*ops)();
  kernels::DType dtype;
};

class SwiftKvInvarianceTest : public testing::TestWithParam<OpsCase> {
 protected:
  HarnessOptions Options(int32_t max_sequences) const {
    return {.dtype = GetParam().dtype, .max_sequences = max_sequences, .max_tokens = 1400};
  }
  const ModelConfig config_ = SmallSwiftKvConfig(Architecture::kLlama, 6, 3, 1);
  const std::unique_ptr<checkpoint::Checkpoint> checkpoint_ = MakeTestCheckpoint(config_, kSeed);
};

// (c) Bit for bit, also across the tiles of a step (OpTable::tile_rows).
TEST_P(SwiftKvInvarianceTest, ChunkSizeChangesNoBit) {
  const std::vector<int32_t> tokens = RandomTokens(7, 1100, config_.vocab_size);
  ModelHarness whole(*checkpoint_, GetParam().ops(), Options(1));
  const std::vector<float> expected = whole.Prefill(0, tokens, 1100);
  const std::vector<float> expected_cache = whole.AllCached(0);
  for (const int32_t chunk : {37, 64, 513}) {
    ModelHarness harness(*checkpoint_, GetParam().ops(), Options(1));
    EXPECT_EQ(harness.Prefill(0, tokens, chunk), expected) << "chunk " << chunk;
    EXPECT_EQ(harness.AllCached(0), expected_cache) << "chunk " << chunk;
  }
}

TEST_P(SwiftKvInvarianceTest, BatchCompositionChangesNoBit) {
  const std::vector<int32_t> first = RandomTokens(8, 90, config_.vocab_size);
  const std::vector<int32_t> second = RandomTokens(9, 33, config_.vocab_size);
  const std::vector<int32_t> third = RandomTokens(10, 70, config_.vocab_size);
  std::vector<std::vector<float>> alone_logits, alone_cache;
  for (const std::vector<int32_t>& tokens : {first, second, third}) {
    ModelHarness alone(*checkpoint_, GetParam().ops(), Options(1));
    alone_logits.push_back(alone.Prefill(0, tokens, 90));
    alone_cache.push_back(alone.AllCached(0));
  }
  // The second sequence decodes its last token while the others prefill; the third has an
  // unfinished chunk in the first step.
  ModelHarness together(*checkpoint_, GetParam().ops(), Options(3));
  const auto slice = [](const std::vector<int32_t>& tokens, size_t begin, size_t end) {
    return std::vector<int32_t>(tokens.begin() + static_cast<ptrdiff_t>(begin),
                                tokens.begin() + static_cast<ptrdiff_t>(end));
  };
  together.Step({{1, slice(second, 0, 32), {}, {}}, {2, slice(third, 0, 50), {}, {}}});
  const std::vector<float> logits = together.Step({{0, first, {89}, {89}},
                                                   {1, slice(second, 32, 33), {0}, {0}},
                                                   {2, slice(third, 50, 70), {19}, {19}}});
  std::vector<float> expected;
  for (int32_t s = 0; s < 3; ++s) {
    const auto index = static_cast<size_t>(s);
    expected.insert(expected.end(), alone_logits[index].begin(), alone_logits[index].end());
    EXPECT_EQ(together.AllCached(s), alone_cache[index]) << "sequence " << s;
  }
  EXPECT_EQ(logits, expected);
}

// (d) Several survivors of one request, not all of which want logits.
TEST_P(SwiftKvInvarianceTest, SeveralSurvivorsPerRequestChangeNoBit) {
  const std::vector<int32_t> tokens = RandomTokens(11, 60, config_.vocab_size);
  ModelHarness all(*checkpoint_, GetParam().ops(), Options(1));
  StepPart everything = {0, tokens, {}, {}};
  for (int32_t i = 0; i < 60; ++i) {
    everything.survivors.push_back(i);
    everything.logits.push_back(i);
  }
  const std::vector<float> dense = all.Step({everything});
  ModelHarness some(*checkpoint_, GetParam().ops(), Options(2));
  const std::vector<int32_t> other = RandomTokens(12, 20, config_.vocab_size);
  const std::vector<float> logits =
      some.Step({{1, other, {2, 19}, {}}, {0, tokens, {5, 6, 30, 58, 59}, {6, 58, 59}}});
  std::vector<float> expected;
  for (const ptrdiff_t row : {6, 58, 59}) {
    const auto begin = dense.begin() + row * config_.vocab_size;
    expected.insert(expected.end(), begin, begin + config_.vocab_size);
  }
  EXPECT_EQ(logits, expected);
  EXPECT_EQ(some.AllCached(0), all.AllCached(0));
}

INSTANTIATE_TEST_SUITE_P(
    BackEnds,
    SwiftKvInvarianceTest,
    testing::Values(OpsCase{"CpuBf16", kernels::CpuOps, kernels::DType::kBF16},
                    OpsCase{"CpuFp32", kernels::CpuOps, kernels::DType::kF32},
                    OpsCase{"ReferenceBf16", kernels::ReferenceOps, kernels::DType::kBF16}),
    [](const auto& test) { return test.param.name; });

TEST(SwiftKvTest, NoSurvivorsStopAfterTheFanOut) {
  const ModelConfig config = SmallSwiftKvConfig(Architecture::kLlama, 4, 2, 2);
  const auto checkpoint = MakeTestCheckpoint(config, kSeed);
  ModelHarness harness(*checkpoint, kernels::CpuOps(), {});
  std::vector<int32_t> layers_entered;
  std::vector<std::pair<int32_t, int32_t>> written;
  harness.on_hidden = [&](int32_t layer, std::span<const float>, int64_t) {
    layers_entered.push_back(layer);
  };
  harness.on_kv_layers_written = [&](int32_t begin, int32_t end) {
    written.emplace_back(begin, end);
  };
  const std::vector<int32_t> tokens = RandomTokens(1, 20, config.vocab_size);
  harness.Step({{0, tokens, {}, {}}});
  EXPECT_EQ(layers_entered, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(written, (std::vector<std::pair<int32_t, int32_t>>{{0, 1}, {1, 2}, {2, 3}}));
  const DenseResult dense = DenseForward(*checkpoint, tokens);
  ExpectClose(harness.Cached(0, 2, false), Flatten(dense.keys[3]), "upper keys");
}

}  // namespace
}  // namespace baton::model
