#include "services/router/session/sequence_output.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "tests/unit/router/test_model.h"

namespace baton::router {
namespace {

const text::Tokenizer& TestTokenizer() { return *TestModel().tokenizer.tokenizer; }

worker::v1::TokenDelta Tokens(const std::vector<int32_t>& ids) {
  worker::v1::TokenDelta delta;
  for (const int32_t id : ids) {
    delta.add_tokens()->set_id(static_cast<uint32_t>(id));
  }
  return delta;
}

std::vector<int32_t> Encode(const std::string& text) {
  return *TestTokenizer().Encode(text, /*add_special_tokens=*/false);
}

SequenceOutput Make(const OutputOptions& options) {
  return {&TestTokenizer(),
          options,
          *text::StopMatcher::Create(options.stop, options.include_stop_str),
          0};
}

TEST(SequenceOutputTest, DeliversTextAndCountsTokens) {
  SequenceOutput output = Make({});
  const auto ids = Encode("the silent chapel");
  std::string text;
  for (const int32_t id : ids) {
    text += output.Push(Tokens({id})).text();
  }
  worker::v1::SequenceFinished finished;
  finished.set_reason(worker::v1::FINISH_REASON_LENGTH);
  text += output.Finish(finished).text();
  EXPECT_EQ(text, "the silent chapel");
  EXPECT_TRUE(output.done());
  EXPECT_FALSE(output.cut());
  EXPECT_EQ(output.finished().reason(), inference::v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(output.completion_tokens(), ids.size());
}

TEST(SequenceOutputTest, AStopTokenCountsButIsNotDelivered) {
  SequenceOutput output = Make({});
  const auto ids = Encode("chapel");
  output.Push(Tokens(ids));
  worker::v1::SequenceFinished finished;
  finished.set_reason(worker::v1::FINISH_REASON_STOP);
  finished.set_stop_token_id(4084);
  output.Finish(finished);
  EXPECT_EQ(output.finished().stop_token_id(), 4084u);
  EXPECT_EQ(output.completion_tokens(), ids.size() + 1);
  EXPECT_EQ(output.delivered_tokens(), ids.size());
}

TEST(SequenceOutputTest, TokensPastAStopStringAreNeitherDeliveredNorCounted) {
  OutputOptions options;
  options.stop = {" chapel"};
  SequenceOutput output = Make(options);
  const auto before = Encode("the silent chapel");
  auto all = before;
  const auto after = Encode(" and more");
  all.insert(all.end(), after.begin(), after.end());
  const inference::v1::Delta delta = output.Push(Tokens(all));
  EXPECT_EQ(delta.text(), "the silent");
  EXPECT_TRUE(output.done());
  EXPECT_TRUE(output.cut());
  EXPECT_EQ(output.finished().stop(), " chapel");
  EXPECT_EQ(output.completion_tokens(), static_cast<uint32_t>(delta.token_ids_size()));
  EXPECT_LE(output.completion_tokens(), before.size());
  EXPECT_EQ(output.Push(Tokens(after)).token_ids_size(), 0);
}

TEST(SequenceOutputTest, IncludeStopStringKeepsIt) {
  OutputOptions options;
  options.stop = {" chapel"};
  options.include_stop_str = true;
  SequenceOutput output = Make(options);
  EXPECT_EQ(output.Push(Tokens(Encode("the silent chapel and more"))).text(), "the silent chapel");
}

TEST(SequenceOutputTest, StopStringsAreIgnoredInTheFirstMinTokens) {
  OutputOptions options;
  options.stop = {"1"};
  options.min_tokens = 3;
  SequenceOutput output = Make(options);
  const auto one = Encode("1");
  ASSERT_EQ(one.size(), 1u);
  output.Push(Tokens({one[0], one[0], one[0]}));
  EXPECT_FALSE(output.done());
  output.Push(Tokens({one[0]}));
  EXPECT_TRUE(output.done());
  EXPECT_EQ(output.completion_tokens(), 4u);
}

TEST(SequenceOutputTest, HeldBackTextComesWithTheEnd) {
  OutputOptions options;
  options.stop = {"chapel of"};
  SequenceOutput output = Make(options);
  EXPECT_EQ(output.Push(Tokens(Encode("chapel"))).text(), "");
  worker::v1::SequenceFinished finished;
  finished.set_reason(worker::v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(output.Finish(finished).text(), "chapel");
}

TEST(SequenceOutputTest, LogprobsGoWithTheirTokens) {
  SequenceOutput output = Make({});
  worker::v1::TokenDelta tokens;
  worker::v1::Token* token = tokens.add_tokens();
  token->set_id(static_cast<uint32_t>(Encode("1")[0]));
  token->set_logprob(-0.5f);
  auto* top = token->add_top_logprobs();
  top->set_token_id(9);
  top->set_logprob(-1.5f);
  const inference::v1::Delta delta = output.Push(tokens);
  ASSERT_EQ(delta.logprobs_size(), 1);
  EXPECT_EQ(delta.logprobs(0).token_id(), token->id());
  EXPECT_FLOAT_EQ(delta.logprobs(0).logprob(), -0.5f);
  EXPECT_EQ(delta.logprobs(0).top(0).token_id(), 9u);
}

}  // namespace
}  // namespace baton::router
