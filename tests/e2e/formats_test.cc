// Every KV format through router, prefill and decode as real processes gives the tokens of the same
// engines joined in one process, for every shipped model, and ships and holds fewer bytes.
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "tests/support/child_process.h"
#include "tests/support/local_stack.h"

namespace baton::testing {
namespace {

using ::nlohmann::json;

constexpr char kCases[] = BATON_SOURCE_DIR "/tests/data/models/eval";
constexpr char kSubset[] = BATON_SOURCE_DIR "/tests/e2e/subset_20.txt";

struct Format {
  const char* name;
  const char* policy;
  double most_wire_bytes;  // of the logical ones
};

using Case = std::tuple<std::string, Format>;

std::map<std::string, json> ReadRows(const std::string& path) {
  std::map<std::string, json> rows;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    json row = json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (row.is_object()) {
      rows[row.value("id", "")] = row;
    }
  }
  return rows;
}

class FormatsTest : public ::testing::TestWithParam<Case> {
 protected:
  void Run(std::vector<std::string> argv) {
    argv.push_back(absl::StrCat("--cases=", kCases));
    argv.push_back(absl::StrCat("--subset=", kSubset));
    argv.push_back(absl::StrCat("--kv=", std::get<1>(GetParam()).policy));
    auto process = ChildProcess::Start(argv, stack_->folder() + "/eval.log");
    ASSERT_TRUE(process.ok()) << process.status();
    const absl::StatusOr<int> code = process->Wait(absl::Minutes(10));
    ASSERT_TRUE(code.ok()) << code.status() << stack_->LogTails();
    ASSERT_EQ(*code, 0) << stack_->LogTails();
  }

  std::unique_ptr<LocalStack> stack_;
};

std::string CaseName(const ::testing::TestParamInfo<Case>& test) {
  std::string name = std::get<0>(test.param) + std::get<1>(test.param).name;
  std::erase(name, '-');
  return name;
}

TEST_P(FormatsTest, ThreeProcessesGiveTheTokensOfTwoEnginesInOne) {
  const auto& [model, format] = GetParam();
  const std::string directory = BATON_SOURCE_DIR "/tests/data/models/" + model;
  auto stack = LocalStack::Start({.model = directory});
  ASSERT_TRUE(stack.ok()) << stack.status();
  stack_ = *std::move(stack);
  const std::string processes = stack_->folder() + "/processes.jsonl";
  const std::string engines = stack_->folder() + "/engines.jsonl";
  ASSERT_NO_FATAL_FAILURE(Run({BinaryPath("baton-client"),
                               "eval",
                               "--router=" + stack_->router_address(),
                               "--out=" + processes,
                               "--concurrency=8"}));
  ASSERT_NO_FATAL_FAILURE(Run({BinaryPath("baton-lab"),
                               "eval",
                               "--model=" + directory,
                               "--role=split",
                               "--threads=2",
                               "--out=" + engines}));
  const auto rows = ReadRows(processes);
  const auto expected = ReadRows(engines);
  ASSERT_EQ(expected.size(), 20u);
  ASSERT_EQ(rows.size(), expected.size());
  int64_t logical = 0;
  int64_t wire = 0;
  for (const auto& [id, want] : expected) {
    const json& row = rows.at(id);
    EXPECT_EQ(row.at("token_ids"), want.at("token_ids"))
        << id << "; repeat: baton-lab eval --role=split --model=tests/data/models/" << model
        << " --cases=tests/data/models/eval --kv=" << format.policy;
    EXPECT_EQ(row.at("kv_resident_bytes"), want.at("kv_resident_bytes")) << id;
    logical += row.at("kv_logical_bytes").get<int64_t>();
    wire += row.at("kv_wire_bytes").get<int64_t>();
  }
  EXPECT_LT(static_cast<double>(wire), format.most_wire_bytes * static_cast<double>(logical));
}

constexpr char kShadowKv[] = "shadowkv:rank=96,chunk=1,sel=q2,outliers=0,local=32,a=int8";

INSTANTIATE_TEST_SUITE_P(
    ModelsAndFormats,
    FormatsTest,
    ::testing::Combine(::testing::Values("tiny-llama-needle",
                                         "tiny-llama-needle-swiftkv-l6",
                                         "tiny-llama-needle-swiftkv-l6-across2"),
                       ::testing::Values(Format{"fp8", "fp8", 0.56},
                                         Format{"diffkv", "diffkv:al=0", 0.42},
                                         Format{"shadowkv", kShadowKv, 0.62})),
    CaseName);

INSTANTIATE_TEST_SUITE_P(
    HiddenStates,
    FormatsTest,
    ::testing::Combine(::testing::Values("tiny-llama-needle-swiftkv-l6",
                                         "tiny-llama-needle-swiftkv-l6-across2"),
                       ::testing::Values(Format{"hidden", "hidden+dense", 0.82},
                                         Format{"hidden8diffkv", "hidden8+diffkv:al=0", 0.36})),
    CaseName);

}  // namespace
}  // namespace baton::testing
