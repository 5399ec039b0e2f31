#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "common/text/detokenizer.h"
#include "common/text/stop_matcher.h"
#include "tests/unit/text/test_tokenizer.h"

namespace baton::text {
namespace {

TEST(IncrementalDetokenizerTest, HoldsBackAnUnfinishedCharacter) {
  const auto tokenizer = *Tokenizer::FromJson(TestTokenizerJson().dump());
  IncrementalDetokenizer detokenizer(tokenizer.get(), false);
  EXPECT_EQ(detokenizer.Push(0xE2), "");
  EXPECT_EQ(detokenizer.Push(0x82), "");
  EXPECT_EQ(detokenizer.Push(0xAC), "€");
  EXPECT_EQ(detokenizer.Push(0xE2), "");
  EXPECT_EQ(detokenizer.Push('a'), "\uFFFDa");
  EXPECT_EQ(detokenizer.Push(0xF0), "");
  EXPECT_EQ(detokenizer.Flush(), "\uFFFD");
  EXPECT_EQ(detokenizer.Flush(), "");
}

TEST(IncrementalDetokenizerTest, PiecesTogetherAreTheDecodedText) {
  const auto tokenizer =
      *Tokenizer::FromJson(TestTokenizerJson({}, {{{"content", "<s>"}, {"special", true}}}).dump());
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed) +
               "; repeat with --gtest_filter=IncrementalDetokenizerTest.*");
  std::mt19937 random(seed);
  for (int round = 0; round < 500; ++round) {
    std::vector<int32_t> ids;
    for (int i = 0; i < 30; ++i)
      ids.push_back(random() % 9 == 0 ? 1000 : static_cast<int32_t>(random() % 256));
    for (const bool skip : {false, true}) {
      IncrementalDetokenizer detokenizer(tokenizer.get(), skip);
      std::string text;
      for (const int32_t id : ids) text += detokenizer.Push(id);
      text += detokenizer.Flush();
      EXPECT_EQ(text, tokenizer->Decode(ids, skip));
    }
  }
}

StopMatcher Make(std::vector<std::string> stops, bool include = false) {
  auto matcher = StopMatcher::Create(std::move(stops), include);
  EXPECT_TRUE(matcher.ok()) << matcher.status();
  return *std::move(matcher);
}

TEST(StopMatcherTest, CopiesMatchOnTheirOwn) {
  const StopMatcher compiled = Make({"END"});
  StopMatcher first = compiled;
  StopMatcher second = compiled;
  EXPECT_EQ(first.Push("aEN").text, "a");
  EXPECT_EQ(second.Push("D").text, "D");
  EXPECT_TRUE(first.Push("D").stopped);
  EXPECT_EQ(first.matched(), "END");
  EXPECT_FALSE(second.stopped());
}

TEST(StopMatcherTest, HoldsBackTextThatMayBeginAStopString) {
  StopMatcher matcher = Make({"END"});
  EXPECT_EQ(matcher.Push("abE").text, "ab");
  EXPECT_EQ(matcher.Push("N").text, "");
  EXPECT_EQ(matcher.Push("Ex").text, "ENEx");
  EXPECT_FALSE(matcher.stopped());
  EXPECT_EQ(matcher.Push("E").text, "");
  EXPECT_EQ(matcher.Finish(), "E");
}

TEST(StopMatcherTest, TokensPastAMatchAreNeitherDeliveredNorCounted) {
  StopMatcher matcher = Make({"\n\n", "stop"});
  EXPECT_EQ(matcher.Push("one s").text, "one ");
  EXPECT_EQ(matcher.Push("to").text, "");
  const StopMatcher::Output output = matcher.Push("p and more");
  EXPECT_TRUE(output.stopped);
  EXPECT_EQ(output.text, "");
  EXPECT_EQ(matcher.Push("late").text, "");
  EXPECT_EQ(matcher.PushFlushed("later").text, "");
  EXPECT_EQ(matcher.Finish(), "");
  EXPECT_EQ(matcher.matched_index(), 1);
  EXPECT_EQ(matcher.num_tokens(), 3u);
}

TEST(StopMatcherTest, StopStringIsDeliveredOnRequest) {
  StopMatcher matcher = Make({"stop"}, true);
  EXPECT_EQ(matcher.Push("a st").text, "a ");
  EXPECT_EQ(matcher.Push("op!").text, "stop");
}

TEST(StopMatcherTest, FirstMatchToEndWinsAndTheLongestAmongThose) {
  StopMatcher matcher = Make({"c", "abc", "abcd"});
  EXPECT_EQ(matcher.Push("xabcd").text, "x");
  EXPECT_EQ(matcher.matched_index(), 1);
}

TEST(StopMatcherTest, TokenWithoutTextIsCounted) {
  StopMatcher matcher = Make({});
  EXPECT_EQ(matcher.Push("").text, "");
  EXPECT_EQ(matcher.Push("all of it").text, "all of it");
  EXPECT_EQ(matcher.num_tokens(), 2u);
}

TEST(StopMatcherTest, ResultDoesNotDependOnTokenBorders) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed) + "; repeat with --gtest_filter=StopMatcherTest.*");
  std::mt19937 random(seed);
  const auto random_text = [&](unsigned max_size) {
    std::string text;
    for (auto i = 1 + random() % max_size; i > 0; --i)
      text += static_cast<char>('a' + random() % 2);
    return text;
  };
  for (int round = 0; round < 2000; ++round) {
    const std::vector<std::string> stops = {random_text(6), random_text(6)};
    const std::string text = random_text(24);
    StopMatcher whole = Make(stops);
    std::string expected = whole.Push(text).text;
    expected += whole.Finish();
    StopMatcher split = Make(stops);
    std::string delivered;
    for (size_t i = 0; i < text.size();) {
      const size_t size = 1 + random() % 4;
      delivered += split.Push(text.substr(i, size)).text;
      i += size;
    }
    delivered += split.Finish();
    EXPECT_EQ(delivered, expected);
    EXPECT_EQ(split.matched_index(), whole.matched_index());
    const bool contains =
        text.find(stops[0]) != std::string::npos || text.find(stops[1]) != std::string::npos;
    EXPECT_EQ(whole.stopped(), contains);
  }
}

TEST(StopMatcherTest, BadStopStringsAreRefused) {
  EXPECT_FALSE(StopMatcher::Create({""}, false).ok());
  EXPECT_FALSE(StopMatcher::Create({"\xFF"}, false).ok());
  EXPECT_FALSE(StopMatcher::Create({std::string(kMaxStopBytes + 1, 'a')}, false).ok());
  EXPECT_FALSE(StopMatcher::Create(std::vector<std::string>(kMaxStopStrings + 1, "a"), false).ok());
}

}  // namespace
}  // namespace baton::text
