// Traces: what is read, what is refused, and the prompts that come of it.
#include "services/loadtest/arrivals/trace.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "services/loadtest/workload/synthetic.h"
#include "tests/unit/loadtest/file_test.h"

namespace baton::loadtest {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TraceTest : public FileTest {
 protected:
  TraceTest() : FileTest("loadtest_trace.jsonl") {}
};

TEST_F(TraceTest, ReadsMooncakesForm) {
  const auto entry = ParseTraceEntry(
      R"({"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 2353]})");
  ASSERT_TRUE(entry.ok()) << entry.status();
  EXPECT_EQ(entry->at, absl::Milliseconds(27482));
  EXPECT_EQ(entry->input_tokens, 6955);
  EXPECT_EQ(entry->output_tokens, 52);
  EXPECT_THAT(entry->blocks, ElementsAre(46u, 47u, 2353u));
}

TEST_F(TraceTest, RefusesBadEntriesByField) {
  const std::pair<const char*, const char*> cases[] = {
      {"[]", "JSON object"},
      {"{", ""},
      {R"({"input_length": 1, "output_length": 1})", "timestamp"},
      {R"({"timestamp": "1", "input_length": 1, "output_length": 1})", "timestamp"},
      {R"({"timestamp": -1, "input_length": 1, "output_length": 1})", "timestamp"},
      {R"({"timestamp": 1e300, "input_length": 1, "output_length": 1})", "timestamp"},
      {R"({"timestamp": 0, "input_length": 0, "output_length": 1})", "input_length"},
      {R"({"timestamp": 0, "input_length": 1, "output_length": 1e30})", "output_length"},
      {R"({"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": 3})", "hash_ids"},
      {R"({"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [-1]})", "hash_ids"}};
  for (const auto& [line, field] : cases) {
    const auto entry = ParseTraceEntry(line);
    EXPECT_EQ(entry.status().code(), absl::StatusCode::kInvalidArgument) << line;
    EXPECT_THAT(std::string(entry.status().message()), HasSubstr(field)) << line;
  }
}

TEST_F(TraceTest, TimesCountFromTheFirstEntryAndAreScaled) {
  const auto trace = ReadTrace(File(R"({"timestamp": 5000, "input_length": 3, "output_length": 1}

{"timestamp": 5500, "input_length": 3, "output_length": 1}
{"timestamp": 9000, "input_length": 3, "output_length": 1})"),
                               2.0);
  ASSERT_TRUE(trace.ok()) << trace.status();
  const auto schedule = MakeTraceSchedule(*trace);
  EXPECT_EQ(schedule->Next(), absl::ZeroDuration());
  EXPECT_EQ(schedule->Next(), absl::Milliseconds(250));
  EXPECT_EQ(schedule->Next(), absl::Seconds(2));
  EXPECT_EQ(schedule->Next(), std::nullopt);
}

TEST_F(TraceTest, ErrorsNameFileAndLine) {
  EXPECT_EQ(ReadTrace("nowhere.jsonl", 1).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(ReadTrace(File("\n\n"), 1).status().message()), HasSubstr("no entry"));
  const auto backwards =
      ReadTrace(File("{\"timestamp\": 2, \"input_length\": 3, \"output_length\": 1}\n"
                     "{\"timestamp\": 1, \"input_length\": 3, \"output_length\": 1}\n"),
                1);
  EXPECT_THAT(std::string(backwards.status().message()),
              testing::AllOf(HasSubstr("loadtest_trace.jsonl line 2"), HasSubstr("timestamp")));
}

TEST_F(TraceTest, EqualBlocksGiveEqualTokens) {
  inference::v1::ModelInfo model;
  model.set_vocab_size(4096);
  model.set_max_sequence_tokens(4096);
  const auto workload =
      MakeTraceWorkload({{.at = {}, .input_tokens = 1200, .output_tokens = 7, .blocks = {5, 6, 7}},
                         {.at = {}, .input_tokens = 700, .output_tokens = 9, .blocks = {5, 9}},
                         {.at = {}, .input_tokens = 700, .output_tokens = 9}},
                        model,
                        1);
  std::vector<std::vector<uint32_t>> prompts;
  while (const auto conversation = workload->Next()) {
    const auto request = conversation->NextTurn(nullptr);
    ASSERT_TRUE(request.has_value());
    prompts.emplace_back(request->token_ids().ids().begin(), request->token_ids().ids().end());
    EXPECT_TRUE(request->stopping().ignore_eos());
  }
  ASSERT_EQ(prompts.size(), 3u);
  EXPECT_EQ(prompts[0].size(), 1200u);
  EXPECT_EQ(prompts[1].size(), 700u);
  EXPECT_TRUE(std::equal(prompts[0].begin(), prompts[0].begin() + 512, prompts[1].begin()));
  EXPECT_NE(prompts[0][512], prompts[1][512]);
  EXPECT_NE(prompts[1], prompts[2]);
}

TEST_F(TraceTest, BlocksWithoutAnIdDifferAndAreTheSameInEveryRun) {
  inference::v1::ModelInfo model;
  model.set_vocab_size(4096);
  model.set_max_sequence_tokens(4096);
  const auto prompt = [&model](uint64_t seed) {
    const auto workload = MakeTraceWorkload(
        {{.at = {}, .input_tokens = 2048, .output_tokens = 7, .blocks = {5}}}, model, seed);
    const auto request = workload->Next()->NextTurn(nullptr);
    return std::vector<uint32_t>(request->token_ids().ids().begin(),
                                 request->token_ids().ids().end());
  };
  const std::vector<uint32_t> tokens = prompt(1);
  ASSERT_EQ(tokens.size(), 2048u);
  std::set<std::vector<uint32_t>> blocks;
  for (auto block = tokens.begin(); block != tokens.end(); block += kTraceBlockTokens) {
    blocks.emplace(block, block + kTraceBlockTokens);
  }
  EXPECT_EQ(blocks.size(), 4u);
  EXPECT_EQ(tokens, prompt(1));
  EXPECT_NE(tokens, prompt(2));
}

}  // namespace
}  // namespace baton::loadtest
