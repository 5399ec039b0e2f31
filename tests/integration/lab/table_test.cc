// baton-lab eval --table and table: dense answers are those of an engine, every policy has its row,
// files of several processes join.
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "tests/integration/lab/lab_run.h"
#include "tests/unit/checkpoint/temp_dir.h"

namespace baton::lab {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

const std::string kModels = std::string(BATON_SOURCE_DIR) + "/tests/data/models/";

LabRun Eval(const std::string& model, const std::string& out, std::vector<std::string> flags) {
  std::vector<std::string> arguments = {"eval",
                                        "--model=" + kModels + model,
                                        "--cases=" + kModels + "eval/niah_multivalue.jsonl",
                                        "--threads=1",
                                        "--out=" + out};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  return RunLab(arguments);
}

class ModelTest : public testing::TestWithParam<std::string> {};

TEST_P(ModelTest, DenseAndWholeBudgetsAnswerLikeAnEngine) {
  const TempDir folder;
  const LabRun engine = Eval(GetParam(), folder.File("engine"), {"--limit=3", "--role=both"});
  ASSERT_EQ(engine.exit_code, 0) << engine.errors;
  const std::vector<std::string> policies = {"int4",
                                             "snapkv:budget=4096",
                                             "h2o:budget=4096",
                                             "streaming:budget=4096",
                                             "dense",
                                             "quest:budget=4096",
                                             "loki:budget=4096"};
  std::string list;
  for (const std::string& policy : policies) {
    absl::StrAppend(&list, policy, ";");
  }
  const LabRun table = Eval(GetParam(),
                            folder.File("table"),
                            {"--limit=3", "--table", "--kv=" + list, "--prefill-chunk-tokens=300"});
  ASSERT_EQ(table.exit_code, 0) << table.errors;
  const std::vector<json> expected = ReadRows(folder.File("engine"));
  const std::vector<json> rows = ReadRows(folder.File("table"));
  ASSERT_EQ(expected.size(), 3u);
  ASSERT_EQ(rows.size(), 3 * policies.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const json& whole = expected[i / policies.size()];
    const std::string& policy = policies[i % policies.size()];
    SCOPED_TRACE(absl::StrCat(whole.at("id").get<std::string>(), " ", policy));
    EXPECT_EQ(rows[i].at("kv"), policy);
    EXPECT_EQ(rows[i].at("id"), whole.at("id"));
    EXPECT_EQ(rows[i].at("kv_logical_bytes"), whole.at("kv_logical_bytes"));
    EXPECT_GT(rows[i].at("attended_share").get<double>(), 1.0);
    EXPECT_LT(rows[i].at("attended_share").get<double>(), 1.2);
    if (policy != "int4") {
      EXPECT_EQ(rows[i].at("token_ids"), whole.at("token_ids"));
      EXPECT_EQ(rows[i].at("completion_tokens"), whole.at("completion_tokens"));
    }
  }
  EXPECT_EQ(rows[4].at("kv_resident_bytes"), expected[0].at("kv_resident_bytes"));
  EXPECT_LT(rows[0].at("kv_resident_bytes").get<int64_t>() * 3,
            rows[4].at("kv_resident_bytes").get<int64_t>());
}

// Rows by case and policy, without times.
std::map<std::string, json> RowsByName(const std::string& path) {
  std::map<std::string, json> rows;
  for (json row : ReadRows(path)) {
    row.erase("ttft_ms");
    row.erase("total_ms");
    const std::string name =
        absl::StrCat(row.at("id").get<std::string>(), " ", row.at("kv").get<std::string>());
    EXPECT_TRUE(rows.emplace(name, std::move(row)).second) << name << " occurs twice";
  }
  return rows;
}

TEST_P(ModelTest, SeveralJobsWriteTheRowsOfOne) {
  const TempDir folder;
  const std::string policies = "--kv=dense;int4;diffkv;shadowkv:chunk=1,sel=q2,budget=64";
  for (const std::string jobs : {"1", "3"}) {
    const LabRun run =
        Eval(GetParam(), folder.File(jobs), {"--limit=5", "--table", policies, "--jobs=" + jobs});
    ASSERT_EQ(run.exit_code, 0) << run.errors;
  }
  const auto rows = RowsByName(folder.File("1"));
  EXPECT_EQ(rows.size(), 20u);
  EXPECT_EQ(RowsByName(folder.File("3")), rows);
}

INSTANTIATE_TEST_SUITE_P(Models,
                         ModelTest,
                         testing::Values("tiny-llama-needle",
                                         "tiny-llama-needle-swiftkv-l6-across2"),
                         [](const auto& test) {
                           return test.param.ends_with("across2") ? "swiftkv" : "base";
                         });

class FormatTest : public testing::TestWithParam<std::string> {};

// The wire bytes of a row are the payload; an engine's have headers and a manifest on top.
TEST_P(FormatTest, HasTheTokensAndBytesOfTwoEngines) {
  constexpr int64_t kMostHeaderBytes = 4096;
  const TempDir folder;
  const std::string model = "tiny-llama-needle-swiftkv-l6-across2";
  const std::string kv = "--kv=" + GetParam();
  const LabRun table =
      Eval(model, folder.File("table"), {"--limit=2", "--table", kv, "--prefill-chunk-tokens=300"});
  ASSERT_EQ(table.exit_code, 0) << table.errors;
  const LabRun engines = Eval(model, folder.File("engines"), {"--limit=2", "--role=split", kv});
  ASSERT_EQ(engines.exit_code, 0) << engines.errors;
  const std::vector<json> rows = ReadRows(folder.File("table"));
  const std::vector<json> expected = ReadRows(folder.File("engines"));
  ASSERT_EQ(rows.size(), 2u);
  ASSERT_EQ(expected.size(), 2u);
  for (size_t i = 0; i < rows.size(); ++i) {
    for (const char* field : {"id", "kv", "token_ids", "kv_resident_bytes"}) {
      EXPECT_EQ(rows[i].at(field), expected[i].at(field)) << field;
    }
    const auto payload = rows[i].at("kv_wire_bytes").get<int64_t>();
    const auto sent = expected[i].at("kv_wire_bytes").get<int64_t>();
    EXPECT_GT(payload, 0);
    EXPECT_LT(payload, sent);
    EXPECT_GT(payload + kMostHeaderBytes, sent);
  }
}

INSTANTIATE_TEST_SUITE_P(Formats,
                         FormatTest,
                         testing::Values("dense",
                                         "fp8",
                                         "diffkv:al=0",
                                         "shadowkv:rank=96,chunk=1,sel=q2,outliers=0,local=32",
                                         "shadowkv:chunk=1,sel=q2,outliers=0,local=32,joint=160",
                                         "hidden+dense",
                                         "hidden8+diffkv:al=0",
                                         "hidden+shadowkv:rank=96,outliers=4"),
                         [](const auto& test) {
                           const std::string head = test.param.substr(0, test.param.find(':'));
                           return absl::StrCat(absl::StrReplaceAll(head, {{"+", "_"}}),
                                               test.param.ends_with("joint=160") ? "_joint" : "");
                         });

TEST(TableTest, ShardsJoinToTheWholeTable) {
  const TempDir folder;
  const std::vector<std::string> flags = {
      "--table", "--limit=3", "--kv=dense;streaming:budget=0.3"};
  const auto run = [&](const std::string& out, const std::string& flag) {
    std::vector<std::string> all = flags;
    all.push_back(flag);
    const LabRun lab = Eval("tiny-llama-needle", folder.File(out), all);
    EXPECT_EQ(lab.exit_code, 0) << lab.errors;
    return lab.output;
  };
  const std::string whole = run("whole", "--shard=0/1");
  EXPECT_THAT(whole, HasSubstr("| `streaming:budget=0.3` |"));
  EXPECT_THAT(run("first", "--shard=0/2"), HasSubstr("/2 |"));
  EXPECT_THAT(run("second", "--shard=1/2"), HasSubstr("/1 |"));
  const LabRun joined =
      RunLab({"table", absl::StrCat("--rows=", folder.File("first"), ",", folder.File("second"))});
  ASSERT_EQ(joined.exit_code, 0) << joined.errors;
  EXPECT_EQ(joined.output, whole);
}

TEST(TableTest, ResumeRunsOnlyThePoliciesThatAreMissing) {
  const TempDir folder;
  const std::string out = folder.File("rows");
  ASSERT_EQ(Eval("tiny-llama-needle", out, {"--table", "--limit=1", "--kv=dense"}).exit_code, 0);
  const std::vector<json> before = ReadRows(out);
  const LabRun resumed =
      Eval("tiny-llama-needle", out, {"--table", "--limit=2", "--kv=dense;kivi", "--resume"});
  ASSERT_EQ(resumed.exit_code, 0) << resumed.errors;
  const std::vector<json> rows = ReadRows(out);
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[0], before[0]) << "with its times: it was not run again";
  EXPECT_EQ(rows[1].at("kv"), "kivi");
  EXPECT_EQ(rows[1].at("id"), rows[0].at("id"));
}

TEST(TableTest, BadFlagsAreNamed) {
  const TempDir folder;
  for (const auto& [flag, word] :
       std::vector<std::pair<std::string, std::string>>{{"--kv=dense;zip", "zip"},
                                                        {"--kv=auto", "auto"},
                                                        {"--kv=hidden+dense", "hidden+dense"},
                                                        {"--shard=2/2", "--shard"},
                                                        {"--shard=x", "--shard"}}) {
    const LabRun run =
        Eval("tiny-llama-needle", folder.File("rows"), {"--table", "--limit=1", flag});
    EXPECT_NE(run.exit_code, 0) << flag;
    EXPECT_THAT(run.errors, HasSubstr(word));
  }
  const LabRun table = RunLab({"table"});
  EXPECT_NE(table.exit_code, 0);
  EXPECT_THAT(table.errors, HasSubstr("--rows"));
}

}  // namespace
}  // namespace baton::lab
