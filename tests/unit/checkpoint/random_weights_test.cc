#include "common/checkpoint/random_weights.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "gtest/gtest.h"

namespace baton::checkpoint {
namespace {

std::vector<float> Fill(uint64_t seed, const char* name, std::vector<int64_t> shape) {
  size_t count = 1;
  for (const int64_t extent : shape) {
    count *= static_cast<size_t>(extent);
  }
  std::vector<float> values(count);
  FillRandomTensor(seed, name, shape, 0, values);
  return values;
}

double Deviation(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) {
    sum += double{value} * value;
  }
  return std::sqrt(sum / static_cast<double>(values.size()));
}

TEST(RandomWeightsTest, IsAPureFunctionOfSeedAndName) {
  const char* name = "model.layers.0.mlp.up_proj.weight";
  EXPECT_EQ(Fill(1, name, {8, 16}), Fill(1, name, {8, 16}));
  EXPECT_NE(Fill(1, name, {8, 16}), Fill(2, name, {8, 16}));
  EXPECT_NE(Fill(1, name, {8, 16}), Fill(1, "model.layers.1.mlp.up_proj.weight", {8, 16}));
}

TEST(RandomWeightsTest, FirstValuesAreFixedForAllMachines) {
  const std::vector<float> values = Fill(7, "lm_head.weight", {2, 2});
  const std::vector<float> again = Fill(7, "lm_head.weight", {4, 1});
  EXPECT_EQ(values, again) << "the shape enters only through the deviation of layer matrices";
  for (const float value : values) {
    EXPECT_LT(std::abs(value), 0.02f * 3.5f);
  }
}

TEST(RandomWeightsTest, PartsAreThoseOfTheWhole) {
  const char* name = "model.layers.0.mlp.up_proj.weight";
  const std::vector<int64_t> shape = {8, 16};
  const std::vector<float> whole = Fill(5, name, shape);
  std::vector<float> parts(whole.size());
  for (size_t first = 0; first < parts.size(); first += 33) {
    const size_t count = std::min<size_t>(33, parts.size() - first);
    FillRandomTensor(
        5, name, shape, static_cast<int64_t>(first), std::span<float>(parts).subspan(first, count));
  }
  EXPECT_EQ(parts, whole);
}

TEST(RandomWeightsTest, DeviationKeepsActivationsOfOrderOne) {
  EXPECT_NEAR(
      Deviation(Fill(3, "model.layers.2.self_attn.q_proj.weight", {256, 400})), 0.05, 0.05 * 0.02);
  EXPECT_NEAR(Deviation(Fill(3, "model.embed_tokens.weight", {256, 400})), 0.02, 0.02 * 0.02);
}

TEST(RandomWeightsTest, NormsAreOne) {
  for (const char* name : {"model.norm.weight",
                           "model.norm_swiftkv.weight",
                           "model.layers.0.input_layernorm.weight",
                           "model.layers.0.self_attn.q_norm.weight"}) {
    EXPECT_EQ(Fill(3, name, {5}), std::vector<float>(5, 1.0f)) << name;
  }
}

}  // namespace
}  // namespace baton::checkpoint
