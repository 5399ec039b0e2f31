#include "common/eval/conversation.h"

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/eval/eval_case.h"
#include "common/eval/read_cases.h"
#include "common/eval/result_row.h"
#include "common/eval/result_writer.h"
#include "tests/unit/checkpoint/temp_dir.h"

namespace baton::eval {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

EvalCase Talk() {
  const absl::StatusOr<EvalCase> parsed =
      ParseCase(R"({"id": "talk", "task": "conversation", "length_bucket": 512, "answer": "1",)"
                R"( "messages": [{"role": "user", "content": "one?"}], "max_new_tokens": 4,)"
                R"( "prompt_tokens": 9, "follow_ups": [{"question": "two?", "answer": "2"},)"
                R"( {"question": "three?", "answer": "3"}]})");
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return *parsed;
}

absl::StatusOr<ResultRow> Answer(const EvalCase& turn) { return AnsweredRow(turn, turn.answer); }

std::vector<std::string> RowIds(const ResultWriter& writer) {
  std::vector<std::string> ids;
  for (const ResultRow& row : writer.rows()) {
    ids.push_back(row.id);
  }
  return ids;
}

TEST(ConversationTest, ATurnHoldsWhatWasSaidBefore) {
  const std::optional<EvalCase> second = NextTurn(Talk(), "wrong");
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(second->id, "talk#2");
  EXPECT_EQ(second->answer, "2");
  ASSERT_EQ(second->messages.size(), 3u);
  EXPECT_EQ(second->messages[1]["role"], "assistant");
  EXPECT_EQ(second->messages[1]["content"], "wrong") << "what was said, not what was right";
  EXPECT_EQ(second->messages[2]["content"], "two?");
  const std::optional<EvalCase> third = NextTurn(*second, "2");
  ASSERT_TRUE(third.has_value());
  EXPECT_EQ(third->id, "talk#3");
  EXPECT_EQ(third->messages.size(), 5u);
  EXPECT_FALSE(NextTurn(*third, "3").has_value());
}

TEST(ConversationTest, TurnsShareTheConversationsId) {
  EXPECT_EQ(ConversationId("talk"), "talk");
  EXPECT_EQ(ConversationId("talk#12"), "talk");
}

TEST(ConversationTest, FollowUpsOfAWrongTypeAreNamed) {
  const std::string head =
      R"({"id": "x", "task": "t", "length_bucket": 1, "answer": "1", "max_new_tokens": 4,)"
      R"( "messages": [{"role": "user", "content": "q"}], "prompt_tokens": 9, "follow_ups": )";
  EXPECT_THAT(std::string(ParseCase(head + "3}").status().message()), HasSubstr("follow_ups"));
  EXPECT_THAT(std::string(ParseCase(head + "[3]}").status().message()), HasSubstr("follow_ups"));
  EXPECT_THAT(std::string(ParseCase(head + R"([{"question": "q"}]})").status().message()),
              HasSubstr("answer"));
}

TEST(ConversationTest, ARunWritesEveryTurnAndAnInterruptedOneTheRest) {
  const TempDir dir;
  const std::string path = dir.File("rows.jsonl");
  {
    const auto writer = ResultWriter::Open(path, /*resume=*/false);
    ASSERT_TRUE(writer.ok()) << writer.status();
    ASSERT_TRUE((*writer)->Append(*Answer(Talk())).ok());
    EXPECT_FALSE(FinishedTurns(Talk(), **writer)) << "two turns are missing";
  }
  const auto writer = ResultWriter::Open(path, /*resume=*/true);
  ASSERT_TRUE(writer.ok()) << writer.status();
  const absl::StatusOr<bool> correct = RunTurns(Talk(), Answer, **writer);
  ASSERT_TRUE(correct.ok()) << correct.status();
  EXPECT_TRUE(*correct);
  EXPECT_THAT(RowIds(**writer), ElementsAre("talk", "talk#2", "talk#3"));
  EXPECT_TRUE(FinishedTurns(Talk(), **writer));
}

TEST(ConversationTest, AnErrorNamesTheTurnAndWritesNothing) {
  const TempDir dir;
  const auto writer = ResultWriter::Open(dir.File("rows.jsonl"), /*resume=*/false);
  ASSERT_TRUE(writer.ok()) << writer.status();
  const absl::StatusOr<bool> correct = RunTurns(
      Talk(),
      [](const EvalCase& turn) -> absl::StatusOr<ResultRow> {
        if (turn.id == "talk#2") {
          return absl::UnavailableError("gone");
        }
        return Answer(turn);
      },
      **writer);
  EXPECT_TRUE(absl::IsUnavailable(correct.status()));
  EXPECT_THAT(std::string(correct.status().message()), HasSubstr("talk#2"));
  EXPECT_TRUE((*writer)->rows().empty());
}

}  // namespace
}  // namespace baton::eval
