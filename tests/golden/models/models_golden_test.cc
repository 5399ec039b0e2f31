// The shipped model and its SwiftKV variants (tests/data/models/golden/README.md).
#include <algorithm>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "common/checkpoint/checkpoint.h"
#include "kernels/select.h"
#include "tests/golden/compare.h"
#include "tests/unit/model/model_harness.h"

namespace baton::golden {
namespace {

const std::string kModels = std::string(BATON_SOURCE_DIR) + "/tests/data/models/";

struct Case {
  std::string model;  // as golden.json names it
  std::string directory;
  std::string id;
};

std::string Name(const testing::TestParamInfo<Case>& test) {
  std::string name = test.param.model + "_" + test.param.id;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

std::vector<int32_t> GreedyIds(const Case& wanted) {
  const nlohmann::json golden =
      nlohmann::json::parse(std::ifstream(kModels + "golden/golden.json"));
  for (const nlohmann::json& entry : golden["cases"]) {
    if (entry["model"] == wanted.model && entry["id"] == wanted.id) {
      return entry["greedy_ids"].get<std::vector<int32_t>>();
    }
  }
  ADD_FAILURE() << "no golden for " << wanted.model << " " << wanted.id;
  return {};
}

class ModelsGoldenTest : public testing::TestWithParam<Case> {};

TEST_P(ModelsGoldenTest, LastLogitsAndGreedyIds) {
  const Case& wanted = GetParam();
  const auto checkpoint = checkpoint::Checkpoint::Open(kModels + wanted.directory, {});
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto golden = checkpoint::SafetensorsFile::Open(kModels + "golden/golden.safetensors");
  ASSERT_TRUE(golden.ok()) << golden.status();
  const std::vector<int32_t> ids = ReadInts(*golden, wanted.id + ".input_ids");
  const std::vector<int32_t> greedy = GreedyIds(wanted);
  model::ModelHarness harness(
      **checkpoint,
      kernels::CpuOps(),
      {.max_tokens = static_cast<int64_t>(ids.size() + greedy.size()), .page_tokens = 32});
  const std::vector<float> logits = harness.Prefill(0, ids, 2048);
  ExpectMatchesGolden(logits,
                      ReadFloats(*golden, wanted.model + "." + wanted.id + ".last_logits"),
                      wanted.model + " " + wanted.id);
  EXPECT_EQ(harness.Greedy(0, logits, static_cast<int32_t>(greedy.size())), greedy);
}

std::vector<Case> Cases() {
  const std::vector<std::pair<std::string, std::string>> models = {
      {"base", "tiny-llama-needle"},
      {"l6", "tiny-llama-needle-swiftkv-l6"},
      {"l6a2", "tiny-llama-needle-swiftkv-l6-across2"}};
  std::vector<Case> cases;
  for (const auto& [model, directory] : models) {
    for (const char* id : {"public-niah_single-512-000",
                           "public-niah_multikey-2048-000",
                           "public-vt-8192-000",
                           "public-copy-512-000",
                           "public-chain-512-000",
                           "public-multiturn-2048-000"}) {
      cases.push_back({model, directory, id});
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Cases, ModelsGoldenTest, testing::ValuesIn(Cases()), Name);

}  // namespace
}  // namespace baton::golden
