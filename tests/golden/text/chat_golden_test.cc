// Rendered chats and their token ids against HuggingFace transformers
// (tests/data/goldens/README.md).
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"

#include "common/text/chat.h"

namespace baton::text {
namespace {

const std::string kTokenizers = std::string(BATON_SOURCE_DIR) + "/tests/data/goldens/tokenizers/";

struct Case {
  std::string name;  // of chat/<name>.json and chat/<name>.jinja
  std::string tokenizer;
};

std::string ReadText(const std::string& path) {
  std::ifstream stream(path);
  EXPECT_TRUE(stream) << path;
  std::stringstream content;
  content << stream.rdbuf();
  return content.str();
}

class ChatGoldenTest : public ::testing::TestWithParam<Case> {
 protected:
  void CheckAll(const ModelTokenizer& model) {
    const auto golden =
        nlohmann::ordered_json::parse(ReadText(kTokenizers + "chat/" + GetParam().name + ".json"));
    ASSERT_GE(golden["cases"].size(), 10u);
    for (const auto& entry : golden["cases"]) {
      ChatRequest request;
      request.messages = entry["messages"];
      request.add_generation_prompt = entry["add_generation_prompt"];
      EXPECT_EQ(*RenderChat(model, request, absl::UnixEpoch()),
                entry["rendered"].get<std::string>());
      EXPECT_EQ(*EncodeChat(model, request, absl::UnixEpoch()),
                entry["ids"].get<std::vector<int32_t>>());
    }
  }
};

TEST_P(ChatGoldenTest, TemplateOfTheTokenizerConfigRendersLikeTheReference) {
  const absl::StatusOr<ModelTokenizer> model = LoadTokenizer(kTokenizers + GetParam().tokenizer);
  ASSERT_TRUE(model.ok()) << model.status();
  CheckAll(*model);
}

TEST_P(ChatGoldenTest, TemplateFileRendersLikeTheReference) {
  absl::StatusOr<ModelTokenizer> model = LoadTokenizer(kTokenizers + GetParam().tokenizer);
  ASSERT_TRUE(model.ok()) << model.status();
  auto compiled =
      jinja::Template::Compile(ReadText(kTokenizers + "chat/" + GetParam().name + ".jinja"));
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  model->chat_templates.clear();
  model->chat_templates.push_back({"default", *std::move(compiled)});
  CheckAll(*model);
}

INSTANTIATE_TEST_SUITE_P(Templates,
                         ChatGoldenTest,
                         ::testing::Values(Case{"llama3", "llama3"}, Case{"chatml", "qwen2"}),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace baton::text
