// Prompts: synthetic, recorded and of evaluation sets.
#include "services/loadtest/workload/workload.h"

#include <algorithm>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/eval/eval_case.h"
#include "services/loadtest/workload/eval_workload.h"
#include "services/loadtest/workload/length_distribution.h"
#include "services/loadtest/workload/share_gpt.h"
#include "services/loadtest/workload/synthetic.h"
#include "tests/unit/loadtest/file_test.h"

namespace baton::loadtest {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Lt;

using inference::v1::GenerateRequest;

inference::v1::ModelInfo Model() {
  inference::v1::ModelInfo model;
  model.set_vocab_size(4096);
  model.set_max_sequence_tokens(2048);
  model.add_eos_token_ids(4081);
  model.add_eos_token_ids(4084);
  return model;
}

SyntheticOptions Options() {
  return {.input = *LengthDistribution::Parse("100"), .output = *LengthDistribution::Parse("20")};
}

std::vector<uint32_t> Tokens(const GenerateRequest& request) {
  return {request.token_ids().ids().begin(), request.token_ids().ids().end()};
}

TEST(SyntheticWorkloadTest, PromptsHaveTheirLengthAndOrdinaryTokens) {
  const auto workload = MakeSyntheticWorkload(Options(), Model());
  for (int i = 0; i < 50; ++i) {
    const auto conversation = workload->Next();
    const auto request = conversation->NextTurn(nullptr);
    ASSERT_TRUE(request.has_value());
    EXPECT_THAT(Tokens(*request), testing::AllOf(testing::SizeIs(100), Each(Lt(4081u))));
    EXPECT_EQ(request->stopping().max_tokens(), 20u);
    EXPECT_TRUE(request->stopping().ignore_eos());
    EXPECT_FALSE(conversation->NextTurn(nullptr).has_value());
  }
}

TEST(SyntheticWorkloadTest, TheNthPromptDependsOnTheSeedOnly) {
  const auto nth = [](uint64_t seed, int n) {
    SyntheticOptions options = Options();
    options.seed = seed;
    const auto workload = MakeSyntheticWorkload(options, Model());
    for (int i = 0; i < n; ++i) {
      workload->Next();
    }
    return Tokens(*workload->Next()->NextTurn(nullptr));
  };
  EXPECT_EQ(nth(1, 3), nth(1, 3));
  EXPECT_NE(nth(1, 3), nth(1, 4));
  EXPECT_NE(nth(1, 3), nth(2, 3));
}

TEST(SyntheticWorkloadTest, PrefixesAreShared) {
  SyntheticOptions options = Options();
  options.prefix_length = 30;
  options.prefixes = 2;
  const auto workload = MakeSyntheticWorkload(options, Model());
  std::vector<std::vector<uint32_t>> fronts;
  for (int i = 0; i < 40; ++i) {
    std::vector<uint32_t> tokens = Tokens(*workload->Next()->NextTurn(nullptr));
    ASSERT_EQ(tokens.size(), 130u);
    tokens.resize(30);
    if (std::ranges::find(fronts, tokens) == fronts.end()) {
      fronts.push_back(tokens);
    }
  }
  EXPECT_EQ(fronts.size(), 2u);
}

TEST(SyntheticWorkloadTest, ATurnGoesOnFromTheAnswer) {
  SyntheticOptions options = Options();
  options.turns = 2;
  const auto conversation = MakeSyntheticWorkload(options, Model())->Next();
  const std::vector<uint32_t> first = Tokens(*conversation->NextTurn(nullptr));
  EXPECT_TRUE(conversation->wants_answer());
  const Answer answer{.text = "", .token_ids = {7, 8, 9}};
  const std::vector<uint32_t> second = Tokens(*conversation->NextTurn(&answer));
  ASSERT_EQ(second.size(), 203u);
  EXPECT_TRUE(std::equal(first.begin(), first.end(), second.begin()));
  EXPECT_EQ(std::vector<uint32_t>(second.begin() + 100, second.begin() + 103), answer.token_ids);
  EXPECT_FALSE(conversation->wants_answer());
  EXPECT_FALSE(conversation->NextTurn(&answer).has_value());
}

TEST(SyntheticWorkloadTest, APromptIsCutToTheContext) {
  SyntheticOptions options = Options();
  options.input = *LengthDistribution::Parse("5000");
  const auto request = MakeSyntheticWorkload(options, Model())->Next()->NextTurn(nullptr);
  EXPECT_EQ(request->token_ids().ids_size(), 2048 - 20);
}

TEST(SyntheticWorkloadTest, WordsAreText) {
  SyntheticOptions options = Options();
  options.words = true;
  const auto request = MakeSyntheticWorkload(options, Model())->Next()->NextTurn(nullptr);
  EXPECT_EQ(std::ranges::count(request->text(), ' '), 99);
}

class ShareGptTest : public FileTest {
 protected:
  ShareGptTest() : FileTest("chats_share_gpt.jsonl") {}
};

TEST_F(ShareGptTest, KeepsQuestionsAndTheSystemMessage) {
  const auto recorded = ParseShareGpt(
      R"({"id": "x1", "conversations": [{"from": "system", "value": "be brief"},
          {"from": "human", "value": "one?"}, {"from": "gpt", "value": "1"},
          {"from": "user", "value": "two?"}, {"from": "assistant", "value": "2"}]})");
  ASSERT_TRUE(recorded.ok()) << recorded.status();
  EXPECT_EQ(recorded->id, "x1");
  EXPECT_EQ(recorded->system, "be brief");
  EXPECT_THAT(recorded->questions, ElementsAre("one?", "two?"));
}

TEST_F(ShareGptTest, RefusesBadConversations) {
  for (const char* line : {"",
                           "[]",
                           "7",
                           R"({"conversations": 1})",
                           R"({"conversations": ["hello"]})",
                           R"({"conversations": [{"from": "human"}]})",
                           R"({"conversations": [{"from": 1, "value": "x"}]})"}) {
    EXPECT_EQ(ParseShareGpt(line).status().code(), absl::StatusCode::kInvalidArgument) << line;
  }
}

TEST_F(ShareGptTest, TellsApartConversationsWithoutATurnToSend) {
  for (const char* line : {R"({"conversations": []})",
                           R"({"conversations": [{"from": "gpt", "value": "1"}]})",
                           R"({"conversations": [{"from": "system", "value": "be brief"}]})"}) {
    EXPECT_EQ(ParseShareGpt(line).status().code(), absl::StatusCode::kNotFound) << line;
  }
}

TEST_F(ShareGptTest, LeavesOutConversationsWithoutATurnToSend) {
  const auto file =
      ReadShareGpt(File(R"({"id": "a", "conversations": [{"from": "human", "value": "one?"}]}
{"id": "b", "conversations": []}
{"id": "c", "conversations": [{"from": "gpt", "value": "1"}]}
{"id": "d", "conversations": [{"from": "gpt", "value": "1"}, {"from": "human", "value": "two?"}]}
)"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->left_out, 2);
  ASSERT_EQ(file->conversations.size(), 2u);
  EXPECT_EQ(file->conversations[0].id, "a");
  EXPECT_EQ(file->conversations[1].id, "d");
}

TEST_F(ShareGptTest, RefusesAFileOfWhichNothingIsLeft) {
  for (const char* text : {"", R"({"conversations": []})"}) {
    const absl::Status status = ReadShareGpt(File(text)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr("no conversation to send")) << text;
  }
}

TEST_F(ShareGptTest, ErrorsNameFileAndLine) {
  const absl::Status status =
      ReadShareGpt(File(R"({"conversations": [{"from": "human", "value": "a"}]}
{"conversations": []}
no
)"))
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("_share_gpt.jsonl line 3"));
}

TEST_F(ShareGptTest, TurnsCarryTheModelsOwnAnswers) {
  const auto workload =
      MakeRecordedWorkload({{.id = "a", .system = "s", .questions = {"one?", "two?", "three?"}},
                            {.id = "b", .system = "", .questions = {"only?"}}},
                           {.output = *LengthDistribution::Parse("9"), .turns = 2, .repeat = true});
  const auto conversation = workload->Next();
  EXPECT_EQ(conversation->id(), "a");
  EXPECT_EQ(conversation->NextTurn(nullptr)->chat().messages_size(), 2);
  const Answer answer{.text = "mine", .token_ids = {}};
  const auto second = conversation->NextTurn(&answer);
  ASSERT_TRUE(second.has_value());
  ASSERT_EQ(second->chat().messages_size(), 4);
  EXPECT_EQ(second->chat().messages(2).role(), "assistant");
  EXPECT_EQ(second->chat().messages(2).content(), "mine");
  EXPECT_EQ(second->chat().messages(3).content(), "two?");
  EXPECT_EQ(second->stopping().max_tokens(), 9u);
  EXPECT_FALSE(conversation->NextTurn(&answer).has_value());
  EXPECT_EQ(workload->Next()->id(), "b");
  EXPECT_EQ(workload->Next()->id(), "a");
}

// That Remaining is what Next then gives.
void ExpectToEndAfter(Workload& workload, int64_t count) {
  for (; count > 0; --count) {
    EXPECT_EQ(workload.Remaining(), count);
    EXPECT_NE(workload.Next(), nullptr);
  }
  EXPECT_EQ(workload.Remaining(), 0);
  EXPECT_EQ(workload.Next(), nullptr);
}

TEST(WorkloadTest, KnowsHowManyConversationsRemain) {
  const std::vector<eval::EvalCase> cases(2);
  const std::vector<RecordedConversation> recorded(3, {.id = "", .system = "", .questions = {"?"}});
  const RecordedOptions once = {.output = *LengthDistribution::Parse("9")};
  ExpectToEndAfter(*MakeEvalWorkload(cases, /*repeat=*/false), 2);
  ExpectToEndAfter(*MakeEvalWorkload({}, /*repeat=*/true), 0);
  ExpectToEndAfter(*MakeRecordedWorkload(recorded, once), 3);
  ExpectToEndAfter(*MakeTraceWorkload({{.at = {}, .input_tokens = 1, .output_tokens = 1}},
                                      Model(),
                                      /*seed=*/1),
                   1);
  RecordedOptions repeated = once;
  repeated.repeat = true;
  EXPECT_EQ(MakeSyntheticWorkload(Options(), Model())->Remaining(), Workload::kEndless);
  EXPECT_EQ(MakeEvalWorkload(cases, /*repeat=*/true)->Remaining(), Workload::kEndless);
  EXPECT_EQ(MakeRecordedWorkload(recorded, repeated)->Remaining(), Workload::kEndless);
}

TEST(EvalWorkloadTest, AsksGreedilyScoresAndGoesOn) {
  eval::EvalCase eval_case;
  eval_case.id = "c";
  eval_case.messages = {{{"role", "user"}, {"content", "how much?"}}};
  eval_case.answer = "12";
  eval_case.max_new_tokens = 5;
  eval_case.follow_ups = {{.question = "and now?", .answer = "13"}};
  const auto workload = MakeEvalWorkload({eval_case}, /*repeat=*/false);
  const auto conversation = workload->Next();
  const auto first = conversation->NextTurn(nullptr);
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->stopping().max_tokens(), 5u);
  EXPECT_EQ(first->sampling().temperature(), 0.0f);
  EXPECT_EQ(conversation->Score({.text = "12", .token_ids = {}}), true);
  const Answer wrong{.text = "11", .token_ids = {}};
  EXPECT_EQ(conversation->Score(wrong), false);
  const auto second = conversation->NextTurn(&wrong);
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(second->chat().messages(1).content(), "11");
  EXPECT_EQ(conversation->id(), "c#2");
  EXPECT_EQ(conversation->Score({.text = "13", .token_ids = {}}), true);
  EXPECT_FALSE(conversation->NextTurn(&wrong).has_value());
  EXPECT_EQ(workload->Next(), nullptr);
}

}  // namespace
}  // namespace baton::loadtest
