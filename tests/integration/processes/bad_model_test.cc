// A worker and a router that are given a bad model end at once and say which file and what in it.
#include <filesystem>
#include <fstream>
#include <functional>
#include <ios>
#include <ostream>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "tests/support/child_process.h"
#include "tests/support/local_stack.h"
#include "tests/unit/checkpoint/temp_dir.h"

namespace baton::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr char kModel[] = BATON_SOURCE_DIR "/tests/data/goldens/hf/qwen3";
constexpr char kTokenizer[] = BATON_SOURCE_DIR "/tests/data/goldens/tokenizers/qwen2";

std::string ReadText(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

void EditConfig(const std::string& folder, const char* field, const nlohmann::json& value) {
  nlohmann::json config = nlohmann::json::parse(ReadText(folder + "/config.json"));
  config[field] = value;
  std::ofstream(folder + "/config.json") << config;
}

// Replaces `from` by `to`, of the same length, in the header of the weights.
void EditHeader(const std::string& folder, const std::string& from, const std::string& to) {
  const std::string path = folder + "/model.safetensors";
  std::string bytes = ReadText(path);
  const size_t at = bytes.find(from);
  ASSERT_NE(at, std::string::npos) << from;
  std::ofstream(path, std::ios::binary) << bytes.replace(at, from.size(), to);
}

struct BadModel {
  const char* name;
  const char* binary;
  std::function<void(const std::string& folder)> spoil;
  std::vector<std::string> words;  // of the message
};

void PrintTo(const BadModel& model, std::ostream* out) { *out << model.name; }

class BadModelTest : public ::testing::TestWithParam<BadModel> {};

TEST_P(BadModelTest, EndsWithAMessageThatNamesFileAndFault) {
  const TempDir folder;
  for (const char* source : {kTokenizer, kModel}) {
    fs::copy(
        source, folder.path(), fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  }
  GetParam().spoil(folder.path());
  auto process =
      ChildProcess::Start({BinaryPath(GetParam().binary),
                           "--model=" + folder.path(),
                           "--listen=127.0.0.1:0",
                           "--metrics_listen=127.0.0.1:0",
                           GetParam().binary == std::string("baton-router") ? "--decode=127.0.0.1:1"
                                                                            : "--kv_pool_mib=16"},
                          folder.File("log"));
  ASSERT_TRUE(process.ok()) << process.status();
  const absl::StatusOr<int> code = process->Wait(absl::Seconds(20));
  const std::string log = ReadText(folder.File("log"));
  ASSERT_TRUE(code.ok()) << code.status() << log;
  EXPECT_TRUE(*code == 1 || *code == 2) << *code << log;
  for (const std::string& word : GetParam().words) {
    EXPECT_THAT(log, HasSubstr(word));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Table,
    BadModelTest,
    ::testing::Values(
        BadModel{"MissingWeights",
                 "baton-prefill",
                 [](const std::string& folder) { fs::remove(folder + "/model.safetensors"); },
                 {"model.safetensors"}},
        BadModel{"TruncatedWeights",
                 "baton-decode",
                 [](const std::string& folder) {
                   fs::resize_file(folder + "/model.safetensors",
                                   fs::file_size(folder + "/model.safetensors") / 2);
                 },
                 {"model.safetensors"}},
        BadModel{"MissingConfig",
                 "baton-decode",
                 [](const std::string& folder) { fs::remove(folder + "/config.json"); },
                 {"config.json"}},
        BadModel{"WrongShape",
                 "baton-prefill",
                 [](const std::string& folder) { EditConfig(folder, "intermediate_size", 96); },
                 {"mlp", "shape", "96"}},
        BadModel{"WrongDtype",
                 "baton-prefill",
                 [](const std::string& folder) { EditHeader(folder, R"("BF16")", R"("U16" )"); },
                 {"tensor `", "U16"}},
        BadModel{"UnknownArchitecture",
                 "baton-decode",
                 [](const std::string& folder) {
                   EditConfig(folder, "architectures", {"MambaForCausalLM"});
                   EditConfig(folder, "model_type", "mamba");
                 },
                 {"config.json", "MambaForCausalLM"}},
        BadModel{"MalformedTokenizer",
                 "baton-router",
                 [](const std::string& folder) {
                   std::ofstream(folder + "/tokenizer.json") << "{\"model\": ";
                 },
                 {"tokenizer.json"}},
        BadModel{"TemplateThatDoesNotParse",
                 "baton-router",
                 [](const std::string& folder) {
                   std::ofstream(folder + "/chat_template.jinja") << "{% for %}";
                 },
                 {"chat_template"}}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace baton::testing
