// Token ids, decoded text and streamed pieces against HuggingFace tokenizers
// (tests/data/goldens/README.md).
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"

#include "common/text/detokenizer.h"
#include "common/text/load_tokenizer.h"

namespace baton::text {
namespace {

const std::string kData = std::string(BATON_SOURCE_DIR) + "/tests/data";

nlohmann::json ReadJson(const std::string& path) {
  std::ifstream stream(path);
  EXPECT_TRUE(stream) << path;
  return nlohmann::json::parse(stream);
}

struct Case {
  std::string name;
  std::string model_dir;
  std::string golden;
};

class TokenizerGoldenTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    absl::StatusOr<ModelTokenizer> loaded = LoadTokenizer(kData + GetParam().model_dir);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    model_ = *std::move(loaded);
  }
  const Tokenizer& tokenizer() const { return *model_.tokenizer; }

  ModelTokenizer model_;
};

TEST_P(TokenizerGoldenTest, EncodesLikeTheReference) {
  const nlohmann::json golden = ReadJson(kData + GetParam().golden);
  ASSERT_GE(golden["cases"].size(), 50u);
  for (const nlohmann::json& entry : golden["cases"]) {
    const std::string text = entry["text"];
    EXPECT_EQ(*tokenizer().Encode(text, false), entry["ids"].get<std::vector<int32_t>>()) << text;
    EXPECT_EQ(*tokenizer().Encode(text, true),
              entry["ids_with_special"].get<std::vector<int32_t>>())
        << text;
  }
}

TEST_P(TokenizerGoldenTest, DecodesLikeTheReference) {
  const nlohmann::json golden = ReadJson(kData + GetParam().golden);
  for (const nlohmann::json& entry : golden["cases"]) {
    const auto ids = entry["ids"].get<std::vector<int32_t>>();
    EXPECT_EQ(tokenizer().Decode(ids, false), entry["decoded"].get<std::string>());
    if (entry.contains("decoded_skip_special")) {
      EXPECT_EQ(tokenizer().Decode(ids, true), entry["decoded_skip_special"].get<std::string>());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models,
    TokenizerGoldenTest,
    ::testing::Values(
        Case{"Llama3", "/goldens/tokenizers/llama3", "/goldens/tokenizers/llama3/golden.json"},
        Case{"Qwen2", "/goldens/tokenizers/qwen2", "/goldens/tokenizers/qwen2/golden.json"},
        Case{"Gpt2", "/goldens/tokenizers/gpt2", "/goldens/tokenizers/gpt2/golden.json"},
        Case{"TinyLlamaNeedle",
             "/models/tiny-llama-needle",
             "/models/golden/tokenizer_golden.json"}),
    [](const auto& test) { return test.param.name; });

class StreamGoldenTest : public ::testing::TestWithParam<std::string> {};

TEST_P(StreamGoldenTest, EmitsTheReferencePieces) {
  const std::string dir = kData + "/goldens/tokenizers/" + GetParam();
  const absl::StatusOr<ModelTokenizer> model = LoadTokenizer(dir);
  ASSERT_TRUE(model.ok()) << model.status();
  const nlohmann::json golden = ReadJson(dir + "/golden_stream.json");
  ASSERT_GE(golden["cases"].size(), 20u);
  for (const nlohmann::json& entry : golden["cases"]) {
    IncrementalDetokenizer detokenizer(model->tokenizer.get(), /*skip_special_tokens=*/false);
    std::vector<std::string> pieces;
    std::string text;
    for (const int32_t id : entry["ids"].get<std::vector<int32_t>>()) {
      pieces.push_back(detokenizer.Push(id));
      text += pieces.back();
    }
    const std::string flushed = detokenizer.Flush();
    EXPECT_EQ(pieces, entry["pieces"].get<std::vector<std::string>>());
    EXPECT_EQ(flushed, entry["final"].get<std::string>());
    EXPECT_EQ(text + flushed, entry["text"].get<std::string>());
  }
}

INSTANTIATE_TEST_SUITE_P(Models,
                         StreamGoldenTest,
                         ::testing::Values("llama3", "qwen2", "gpt2"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace baton::text
