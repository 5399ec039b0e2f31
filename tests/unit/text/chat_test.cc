#include "common/text/chat.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "common/text/bounded_json.h"
#include "tests/unit/text/test_tokenizer.h"

namespace baton::text {
namespace {

using nlohmann::json;

// A model directory that lives as long as the test.
class ChatTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    dir_ = std::filesystem::path(::testing::TempDir()) /
           (std::string("baton_chat_test_") + info->name());
    std::filesystem::create_directories(dir_);
    Write(
        "tokenizer.json",
        TestTokenizerJson(
            {}, {{{"content", "<s>"}, {"special", true}}, {{"content", "</s>"}, {"special", true}}})
            .dump());
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  void Write(const std::string& name, const std::string& content) const {
    std::ofstream(dir_ / name) << content;
  }
  absl::StatusOr<ModelTokenizer> Load() const { return LoadTokenizer(dir_.string()); }
  static ChatRequest Hello() {
    ChatRequest request;
    request.messages = {{{"role", "user"}, {"content", "hi"}}};
    return request;
  }
  static std::string Rendered(const ModelTokenizer& model, const ChatRequest& request) {
    const auto text = RenderChat(model, request, absl::UnixEpoch());
    return text.ok() ? *text : text.status().ToString();
  }

  std::filesystem::path dir_;
};

TEST_F(ChatTest, SpecialTokensMayBeStringsOrObjects) {
  Write("tokenizer_config.json", json{{"bos_token", "<s>"}, {"pad_token", nullptr}}.dump());
  Write("special_tokens_map.json",
        json{{"bos_token", "</s>"}, {"eos_token", {{"content", "</s>"}}}}.dump());
  const auto model = Load();
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->bos_id, 1000);
  EXPECT_EQ(model->eos_id, 1001);
  EXPECT_EQ(model->SpecialToken("pad_token"), nullptr);
}

TEST_F(ChatTest, TemplateFileTakesThePlaceOfTheConfig) {
  Write("tokenizer_config.json", json{{"chat_template", "{{ broken"}}.dump());
  EXPECT_FALSE(Load().ok());
  Write("chat_template.jinja", "{{ messages[0].content }}");
  const auto model = Load();
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(Rendered(*model, Hello()), "hi");
}

TEST_F(ChatTest, NamedTemplatesAreChosenByNameOrByTools) {
  const json templates = {{{"name", "default"}, {"template", "plain"}},
                          {{"name", "tool_use"}, {"template", "tools"}},
                          {{"name", "rag"}, {"template", "rag"}}};
  Write("tokenizer_config.json", json{{"chat_template", templates}}.dump());
  const auto model = Load();
  ASSERT_TRUE(model.ok()) << model.status();
  ChatRequest request = Hello();
  EXPECT_EQ(Rendered(*model, request), "plain");
  request.tools = {{{"name", "f"}}};
  EXPECT_EQ(Rendered(*model, request), "tools");
  request.template_name = "rag";
  EXPECT_EQ(Rendered(*model, request), "rag");
  request.template_name = "absent";
  EXPECT_EQ(RenderChat(*model, request, absl::UnixEpoch()).status().code(),
            absl::StatusCode::kNotFound);
}

TEST_F(ChatTest, VariablesReachTheTemplateAndCannotReplaceTheMessages) {
  Write("chat_template.jinja",
        "{{ enable_thinking }}{{ messages|length }}{{ tools is none }}{{ bos_token is defined }}");
  const auto model = Load();
  ASSERT_TRUE(model.ok()) << model.status();
  ChatRequest request = Hello();
  request.variables = {{"enable_thinking", false}, {"messages", {1, 2, 3}}};
  EXPECT_EQ(Rendered(*model, request), "False1TrueFalse");
}

TEST_F(ChatTest, BeginTokenIsNotDoubled) {
  Write("tokenizer_config.json", json{{"bos_token", "<s>"}}.dump());
  Write("chat_template.jinja", "{{ bos_token }}{{ messages[0].content }}");
  json file = TestTokenizerJson({}, {{{"content", "<s>"}, {"special", true}}});
  file["post_processor"] = {{"type", "TemplateProcessing"},
                            {"single",
                             {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}},
                              {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
                            {"special_tokens", {{"<s>", {{"ids", {1000}}}}}}};
  Write("tokenizer.json", file.dump());
  const auto model = Load();
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(*EncodeChat(*model, Hello(), absl::UnixEpoch()),
            (std::vector<int32_t>{1000, 'h', 'i'}));
}

TEST_F(ChatTest, RequestsOfTheWrongShapeAreRefused) {
  Write("chat_template.jinja", "x");
  const auto model = Load();
  ASSERT_TRUE(model.ok()) << model.status();
  for (const char* messages : {"[]", "{}", "[1]", "null"}) {
    ChatRequest request;
    request.messages = nlohmann::ordered_json::parse(messages);
    EXPECT_EQ(RenderChat(*model, request, absl::UnixEpoch()).status().code(),
              absl::StatusCode::kInvalidArgument)
        << messages;
  }
}

TEST_F(ChatTest, ModelWithoutTemplateOrTokenizerSaysSo) {
  const auto model = Load();
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(RenderChat(*model, Hello(), absl::UnixEpoch()).status().code(),
            absl::StatusCode::kFailedPrecondition);
  std::filesystem::remove(dir_ / "tokenizer.json");
  EXPECT_EQ(Load().status().code(), absl::StatusCode::kNotFound);
}

TEST(BoundedJsonTest, LimitsHoldBeforeParsing) {
  EXPECT_TRUE(ParseBoundedOrderedJson(R"({"b": 1, "a": [1, "}]"]})", kRequestJsonLimits).ok());
  EXPECT_FALSE(ParseBoundedOrderedJson("{", kRequestJsonLimits).ok());
  EXPECT_FALSE(
      ParseBoundedOrderedJson(std::string(100, '[') + std::string(100, ']'), kRequestJsonLimits)
          .ok());
  EXPECT_FALSE(
      ParseBoundedJson("{\"a\":1,\"b\":2}", {.max_bytes = 100, .max_depth = 4, .max_members = 1})
          .ok());
}

}  // namespace
}  // namespace baton::text
