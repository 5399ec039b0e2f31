// baton-lab tokenize: JSON lines in, JSON lines out, compared with the goldens.
#include <algorithm>
#include <cstddef>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "tests/integration/lab/lab_run.h"
#include "tests/unit/checkpoint/temp_dir.h"

namespace baton::lab {
namespace {

using nlohmann::ordered_json;
using ::testing::HasSubstr;

const std::string kTokenizers = std::string(BATON_SOURCE_DIR) + "/tests/data/goldens/tokenizers/";

// The first `count` cases of a golden file.
std::vector<ordered_json> Cases(const std::string& file, size_t count) {
  std::ifstream stream(kTokenizers + file);
  const ordered_json golden = ordered_json::parse(stream, nullptr, /*allow_exceptions=*/false);
  EXPECT_TRUE(golden.is_object()) << file;
  const ordered_json& cases = golden["cases"];
  EXPECT_GE(cases.size(), count) << file;
  return {cases.begin(), cases.begin() + static_cast<ptrdiff_t>(std::min(count, cases.size()))};
}

std::string Lines(const std::vector<ordered_json>& values) {
  std::string text;
  for (const ordered_json& value : values) {
    text += value.dump() + "\n";
  }
  return text;
}

std::vector<ordered_json> ReadLines(const std::string& text) {
  std::vector<ordered_json> values;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    values.push_back(ordered_json::parse(line, nullptr, /*allow_exceptions=*/false));
  }
  return values;
}

// Answers of a run without an error, one per request.
std::vector<ordered_json> Answers(const std::string& tokenizer,
                                  const std::vector<ordered_json>& requests,
                                  const std::vector<std::string>& flags = {}) {
  std::vector<std::string> arguments = {"tokenize", "--model", kTokenizers + tokenizer};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  const LabRun run = RunLab(arguments, Lines(requests));
  EXPECT_EQ(run.exit_code, 0) << run.errors;
  std::vector<ordered_json> answers = ReadLines(run.output);
  EXPECT_EQ(answers.size(), requests.size());
  answers.resize(requests.size());
  return answers;
}

TEST(TokenizeTest, TextBecomesTheIdsOfTheReference) {
  for (const char* tokenizer : {"llama3", "qwen2", "gpt2"}) {
    SCOPED_TRACE(tokenizer);
    const auto cases = Cases(std::string(tokenizer) + "/golden.json", 60);
    std::vector<ordered_json> requests;
    requests.reserve(2 * cases.size());
    for (const ordered_json& entry : cases) {
      requests.push_back({{"text", entry["text"]}, {"add_special_tokens", false}});
      requests.push_back({{"text", entry["text"]}});
    }
    const auto answers = Answers(tokenizer, requests);
    for (size_t i = 0; i < cases.size(); ++i) {
      EXPECT_EQ(answers[2 * i]["ids"], cases[i]["ids"]) << cases[i]["text"];
      EXPECT_EQ(answers[2 * i + 1]["ids"], cases[i]["ids_with_special"]) << cases[i]["text"];
    }
  }
}

TEST(TokenizeTest, IdsBecomeTheTextAndThePiecesOfTheReference) {
  const auto cases = Cases("llama3/golden_stream.json", 60);
  std::vector<ordered_json> requests;
  requests.reserve(cases.size());
  for (const ordered_json& entry : cases) {
    requests.push_back({{"ids", entry["ids"]}});
  }
  const auto answers = Answers("llama3", requests);
  for (size_t i = 0; i < cases.size(); ++i) {
    for (const char* field : {"text", "pieces", "final"}) {
      EXPECT_EQ(answers[i][field], cases[i][field]) << field << " of " << cases[i]["ids"];
    }
  }
}

TEST(TokenizeTest, SpecialTokensAreSkippedOnRequest) {
  const auto cases = Cases("llama3/golden.json", 60);
  std::vector<ordered_json> requests;
  requests.reserve(cases.size());
  for (const ordered_json& entry : cases) {
    requests.push_back({{"ids", entry["ids_with_special"]}, {"skip_special_tokens", true}});
  }
  const auto answers = Answers("llama3", requests);
  for (size_t i = 0; i < cases.size(); ++i) {
    EXPECT_EQ(answers[i]["text"], cases[i]["decoded_skip_special"]) << cases[i]["text"];
  }
}

void ExpectChatsOfTheReference(const std::string& tokenizer,
                               const std::string& golden,
                               const std::vector<std::string>& flags) {
  const auto cases = Cases(golden, 10);
  std::vector<ordered_json> requests;
  requests.reserve(cases.size());
  for (const ordered_json& entry : cases) {
    requests.push_back({{"messages", entry["messages"]},
                        {"add_generation_prompt", entry["add_generation_prompt"]}});
  }
  const auto answers = Answers(tokenizer, requests, flags);
  for (size_t i = 0; i < cases.size(); ++i) {
    EXPECT_EQ(answers[i]["rendered"], cases[i]["rendered"]);
    EXPECT_EQ(answers[i]["ids"], cases[i]["ids"]);
  }
}

TEST(TokenizeTest, MessagesBecomeTheChatOfTheReference) {
  ExpectChatsOfTheReference("llama3", "chat/llama3.json", {});
  ExpectChatsOfTheReference("qwen2", "chat/chatml.json", {});
}

TEST(TokenizeTest, ChatTemplateFlagReplacesTheModelsTemplate) {
  const TempDir folder;
  folder.Write("tools.jinja",
               "{{ messages[0].content }}{% for t in tools %}[{{ t.name }}]{% endfor %}");
  const std::vector<ordered_json> requests = {ordered_json::parse(
      R"({"messages": [{"role": "user", "content": "hi"}], "tools": [{"name": "search"}]})")};
  const auto answers = Answers("llama3", requests, {"--chat-template", folder.File("tools.jinja")});
  EXPECT_EQ(answers[0]["rendered"], "hi[search]");
}

TEST(TokenizeTest, EveryBadLineIsNamedAndTheOthersAreAnswered) {
  const std::string good = R"({"text": "hello"})";
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"{\"text\":", "JSON"},
      {"[1]", "object"},
      {"{}", "text, messages and ids"},
      {R"({"text": 5})", "`text`"},
      {R"({"text": "x", "add_special_tokens": 1})", "`add_special_tokens`"},
      {R"({"ids": "x"})", "`ids`"},
      {R"({"ids": [-1]})", "`ids`"},
      {R"({"messages": []})", "messages"},
      {"{\"text\": \"a\xff\"}", "UTF-8"}};
  std::string input;
  for (const auto& [line, word] : bad) {
    input += line + "\n" + good + "\n";
  }
  const LabRun run = RunLab({"tokenize", "--model", kTokenizers + "llama3"}, input);
  EXPECT_NE(run.exit_code, 0);
  EXPECT_THAT(run.errors, HasSubstr(std::to_string(bad.size()) + " lines"));
  const auto answers = ReadLines(run.output);
  ASSERT_EQ(answers.size(), 2 * bad.size());
  for (size_t i = 0; i < bad.size(); ++i) {
    EXPECT_THAT(answers[2 * i].value("error", ""), HasSubstr(bad[i].second)) << bad[i].first;
    EXPECT_TRUE(answers[2 * i + 1].contains("ids")) << "the line after " << bad[i].first;
  }
}

TEST(TokenizeTest, MissingAndBrokenFilesAreNamed) {
  const TempDir folder;
  LabRun run = RunLab({"tokenize", "--model", folder.path()});
  EXPECT_NE(run.exit_code, 0);
  EXPECT_THAT(run.errors, HasSubstr("tokenizer.json"));
  folder.Write("tokenizer.json", "{\"model\": ");
  run = RunLab({"tokenize", "--model", folder.path()});
  EXPECT_NE(run.exit_code, 0);
  EXPECT_THAT(run.errors, HasSubstr("tokenizer.json"));
  folder.Write("bad.jinja", "{% for %}");
  run = RunLab(
      {"tokenize", "--model", kTokenizers + "llama3", "--chat-template", folder.File("bad.jinja")});
  EXPECT_NE(run.exit_code, 0);
  EXPECT_THAT(run.errors, HasSubstr("bad.jinja"));
}

}  // namespace
}  // namespace baton::lab
