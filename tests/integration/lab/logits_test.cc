// baton-lab logits: tensors `logits` [T, V] fp32 and `greedy` int64 [N], compared with the goldens.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "common/checkpoint/safetensors_file.h"
#include "kernels/core/dtype.h"
#include "tests/golden/compare.h"
#include "tests/integration/lab/lab_run.h"
#include "tests/unit/checkpoint/temp_dir.h"

namespace baton::lab {
namespace {

using checkpoint::SafetensorsFile;
using ::testing::HasSubstr;

const std::string kData = std::string(BATON_SOURCE_DIR) + "/tests/data/";
const std::string kQwen3 = kData + "goldens/hf/qwen3";
const std::string kSwiftKv = kData + "models/tiny-llama-needle-swiftkv-l6";

class LogitsTest : public ::testing::Test {
 protected:
  // Runs with `ids` as the input file and further flags.
  LabRun Logits(const std::string& model,
                const std::string& ids,
                const std::vector<std::string>& flags = {}) {
    folder_.Write("ids.json", ids);
    std::vector<std::string> arguments = {"logits",
                                          "--model",
                                          model,
                                          "--input-ids",
                                          folder_.File("ids.json"),
                                          "--out",
                                          folder_.File("out.safetensors"),
                                          "--threads=1"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    return RunLab(arguments);
  }
  LabRun Logits(const std::string& model,
                std::span<const int32_t> ids,
                const std::vector<std::string>& flags = {}) {
    return Logits(model, nlohmann::json(std::vector(ids.begin(), ids.end())).dump(), flags);
  }

  SafetensorsFile Output() { return *SafetensorsFile::Open(folder_.File("out.safetensors")); }
  std::vector<int64_t> OutputShape(const std::string& name) { return Output().View(name)->shape; }
  std::vector<float> OutputLogits() { return golden::ReadFloats(Output(), "logits"); }
  std::vector<int32_t> OutputGreedy() {
    const SafetensorsFile file = Output();
    const auto view = file.View("greedy");
    if (!view.ok() || view->dtype != kernels::DType::kI64) {
      ADD_FAILURE() << "no int64 tensor `greedy`: " << view.status();
      return {};
    }
    std::vector<int64_t> values(view->bytes.size() / sizeof(int64_t));
    std::memcpy(values.data(), view->bytes.data(), view->bytes.size());
    return {values.begin(), values.end()};
  }

  TempDir folder_;
};

class GoldenLogitsTest : public LogitsTest, public ::testing::WithParamInterface<std::string> {};

TEST_P(GoldenLogitsTest, Fp32LogitsAndGreedyIdsAreThoseOfTheReference) {
  const std::string model = kData + "goldens/hf/" + GetParam();
  const auto expected = SafetensorsFile::Open(model + "/golden.safetensors");
  ASSERT_TRUE(expected.ok()) << expected.status();
  const std::vector<int32_t> ids = golden::ReadInts(*expected, "input_ids");
  const std::vector<int32_t> greedy = golden::ReadInts(*expected, "greedy_ids");
  const LabRun run =
      Logits(model, ids, {"--compute", "fp32", "--greedy", std::to_string(greedy.size())});
  ASSERT_EQ(run.exit_code, 0) << run.errors;
  EXPECT_EQ(OutputShape("logits"), expected->View("logits")->shape);
  golden::ExpectMatchesGolden(
      OutputLogits(), golden::ReadFloats(*expected, "logits"), GetParam() + " logits");
  EXPECT_EQ(OutputGreedy(), greedy);
}

INSTANTIATE_TEST_SUITE_P(Models,
                         GoldenLogitsTest,
                         ::testing::Values("llama31", "qwen3", "mistral-swa"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::erase(name, '-');
                           return name;
                         });

TEST_F(LogitsTest, GreedyGoesOnPastStopIds) {
  const auto expected = SafetensorsFile::Open(kData + "models/golden/golden.safetensors");
  ASSERT_TRUE(expected.ok()) << expected.status();
  const std::vector<int32_t> ids =
      golden::ReadInts(*expected, "public-niah_single-512-000.input_ids");
  const LabRun run = Logits(kData + "models/tiny-llama-needle", ids, {"--greedy", "6"});
  ASSERT_EQ(run.exit_code, 0) << run.errors;
  const std::vector<int32_t> greedy = OutputGreedy();
  ASSERT_EQ(greedy.size(), 6u);
  EXPECT_EQ(greedy[2], 4084) << "the stop id that ends the reference's answer";
}

// Row t may depend on the tokens up to t only. It would not be that of a prompt which ends at t if
// the tokens of a longer prompt stopped below the upper layers.
TEST_F(LogitsTest, EveryTokenOfASwiftKvModelRunsThroughAllLayers) {
  const auto expected = SafetensorsFile::Open(kData + "models/golden/golden.safetensors");
  ASSERT_TRUE(expected.ok()) << expected.status();
  const std::vector<int32_t> ids =
      golden::ReadInts(*expected, "public-niah_single-512-000.input_ids");
  ASSERT_EQ(Logits(kSwiftKv, ids, {"--compute=fp32"}).exit_code, 0);
  const std::vector<float> whole = OutputLogits();
  const size_t vocab = whole.size() / ids.size();
  golden::ExpectMatchesGolden(
      std::span(whole).last(vocab),
      golden::ReadFloats(*expected, "l6.public-niah_single-512-000.last_logits"),
      "l6 last row");
  for (const size_t tokens : {size_t{1}, size_t{37}, ids.size() - 1}) {
    ASSERT_EQ(Logits(kSwiftKv, std::span(ids).first(tokens), {"--compute=fp32"}).exit_code, 0);
    const std::vector<float> prefix = OutputLogits();
    ASSERT_EQ(prefix.size(), tokens * vocab);
    EXPECT_EQ(golden::RelativeError(std::span(whole).first(prefix.size()), prefix), 0)
        << tokens << " tokens";
  }
}

TEST_F(LogitsTest, WithoutGreedyThereIsNoSuchTensor) {
  ASSERT_EQ(Logits(kQwen3, "[1, 2, 3]").exit_code, 0);
  EXPECT_EQ(OutputShape("logits"), (std::vector<int64_t>{3, 320}));
  EXPECT_FALSE(Output().View("greedy").ok());
}

TEST_F(LogitsTest, BadInputIsNamedAndEndsWithAnError) {
  const auto expect = [&](const LabRun& run, const std::vector<std::string>& words) {
    EXPECT_NE(run.exit_code, 0);
    for (const std::string& word : words) {
      EXPECT_THAT(run.errors, HasSubstr(word));
    }
  };
  expect(Logits(kQwen3, "[1, 320]"), {"ids.json", "element 1", "320"});
  expect(Logits(kQwen3, "[1, -1]"), {"ids.json", "element 1"});
  expect(Logits(kQwen3, "[1, 2.5]"), {"ids.json", "element 1"});
  expect(Logits(kQwen3, "[1,"), {"ids.json", "JSON array"});
  expect(Logits(kQwen3, "{}"), {"ids.json", "JSON array"});
  expect(Logits(kQwen3, "[]"), {"ids.json", "at least one"});
  expect(Logits(kQwen3, "[1]", {"--greedy=-1"}), {"--greedy"});
  expect(Logits(kQwen3, "[1]", {"--greedy=40960"}), {"max_position_embeddings", "40960"});
  expect(Logits(kQwen3, "[1]", {"--compute=fp8"}), {"--compute", "bf16"});
  expect(Logits(folder_.path(), "[1]"), {"config.json"});
  expect(Logits(kQwen3, "[1]", {"--input-ids=" + folder_.File("none.json")}), {"none.json"});
  expect(RunLab({"logits", "--model", kQwen3}), {"--input-ids"});
}

}  // namespace
}  // namespace baton::lab
