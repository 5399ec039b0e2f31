#include "common/text/tokenizer.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "common/text/utf8.h"
#include "tests/unit/text/test_tokenizer.h"

namespace baton::text {
namespace {

using nlohmann::json;
using Ids = std::vector<int32_t>;

std::unique_ptr<const Tokenizer> Load(const json& file) {
  auto tokenizer = Tokenizer::FromJson(file.dump());
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

absl::Status LoadError(const json& file) { return Tokenizer::FromJson(file.dump()).status(); }

bool Mentions(const absl::Status& status, std::string_view what) {
  return std::string(status.message()).find(what) != std::string::npos;
}

TEST(TokenizerTest, LowestRankMergesFirstAndLeftmostAmongEquals) {
  const auto tokenizer = Load(TestTokenizerJson({{"b", "c"}, {"a", "b"}, {"a", "a"}}));
  EXPECT_EQ(*tokenizer->Encode("abc", false), (Ids{'a', 256}));
  EXPECT_EQ(*tokenizer->Encode("aaa", false), (Ids{258, 'a'}));
}

TEST(TokenizerTest, MergesMayBeWrittenAsOneString) {
  json file = TestTokenizerJson({{"a", "b"}});
  file["model"]["merges"] = json::array({"a b"});
  EXPECT_EQ(*Load(file)->Encode("ab", false), (Ids{256}));
}

TEST(TokenizerTest, IgnoreMergesTakesAWholePieceThatMergesCannotReach) {
  json file = TestTokenizerJson();
  file["model"]["vocab"]["abc"] = 256;
  EXPECT_EQ(*Load(file)->Encode("abc", false), (Ids{'a', 'b', 'c'}));
  file["model"]["ignore_merges"] = true;
  EXPECT_EQ(*Load(file)->Encode("abc", false), (Ids{256}));
}

TEST(TokenizerTest, LongestAddedTokenWins) {
  const auto tokenizer = Load(TestTokenizerJson({},
                                                {{{"content", "<x>"}, {"normalized", false}},
                                                 {{"content", "<x><y>"}, {"normalized", false}}}));
  EXPECT_EQ(*tokenizer->Encode("<x><y><x>", false), (Ids{1001, 1000}));
}

TEST(TokenizerTest, AddedTokenStripsWhiteSpaceOnTheSidesItAsksFor) {
  const auto tokenizer = Load(TestTokenizerJson(
      {}, {{{"content", "<l>"}, {"lstrip", true}}, {{"content", "<r>"}, {"rstrip", true}}}));
  EXPECT_EQ(*tokenizer->Encode("a  <l>  b", false), (Ids{'a', 1000, ' ', ' ', 'b'}));
  EXPECT_EQ(*tokenizer->Encode("a  <r>  b", false), (Ids{'a', ' ', ' ', 1001, 'b'}));
}

TEST(TokenizerTest, SingleWordTokenNeedsNoWordCharacterBesideIt) {
  const auto tokenizer = Load(TestTokenizerJson({}, {{{"content", "no"}, {"single_word", true}}}));
  EXPECT_EQ(*tokenizer->Encode("no", false), (Ids{1000}));
  EXPECT_EQ(*tokenizer->Encode("-no.", false), (Ids{'-', 1000, '.'}));
  EXPECT_EQ(*tokenizer->Encode("nos", false), (Ids{'n', 'o', 's'}));
}

TEST(TokenizerTest, NormalizedAddedTokenMatchesAfterNormalising) {
  json file = TestTokenizerJson({}, {{{"content", "\u1ec7"}, {"normalized", true}}});
  file["normalizer"] = {{"type", "NFC"}};
  EXPECT_EQ(*Load(file)->Encode("e\u0302\u0323", false), (Ids{1000}));
}

TEST(TokenizerTest, PrefixSpaceIsAddedOnceToEachSection) {
  json file = TestTokenizerJson({}, {{{"content", "<x>"}}});
  file["pre_tokenizer"]["add_prefix_space"] = true;
  const auto tokenizer = Load(file);
  EXPECT_EQ(*tokenizer->Encode("a<x> b", false), (Ids{' ', 'a', 1000, ' ', 'b'}));
  EXPECT_EQ(*tokenizer->Encode("", false), Ids{});
}

TEST(TokenizerTest, TemplatePutsTokensAroundTheText) {
  json file = TestTokenizerJson({}, {{{"content", "<s>"}}, {{"content", "</s>"}}});
  file["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single",
       {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}},
        {{"Sequence", {{"id", "A"}, {"type_id", 0}}}},
        {{"SpecialToken", {{"id", "</s>"}, {"type_id", 0}}}}}},
      {"special_tokens", {{"<s>", {{"ids", {1000}}}}, {"</s>", {{"ids", {1001}}}}}}};
  const auto tokenizer = Load(file);
  EXPECT_EQ(*tokenizer->Encode("a", true), (Ids{1000, 'a', 1001}));
  EXPECT_EQ(*tokenizer->Encode("a", false), (Ids{'a'}));
}

TEST(TokenizerTest, InvalidUtf8IsRefusedWithItsByteOffset) {
  const auto tokenizer = Load(TestTokenizerJson());
  const absl::Status status = tokenizer->Encode("ab\xFFz", false).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(Mentions(status, "byte 2")) << status;
}

TEST(TokenizerTest, DecodeSkipsSpecialTokensAndIdsWithoutAToken) {
  const auto tokenizer =
      Load(TestTokenizerJson({}, {{{"content", "<s>"}, {"special", true}}, {{"content", "<t>"}}}));
  const Ids ids = {1000, 'a', 900, -1, 5000, 1001};
  EXPECT_EQ(tokenizer->Decode(ids, true), "a<t>");
  EXPECT_EQ(tokenizer->Decode(ids, false), "<s>a<t>");
  EXPECT_FALSE(tokenizer->HasToken(900));
  EXPECT_EQ(tokenizer->vocab_size(), 1002);
  EXPECT_EQ(tokenizer->TokenId("<t>"), 1001);
  EXPECT_EQ(tokenizer->TokenId("absent"), std::nullopt);
}

TEST(TokenizerTest, MegabyteOfOneLetterIsNotQuadratic) {
  const auto tokenizer = Load(TestTokenizerJson({{"a", "a"}, {"aa", "aa"}, {"aaaa", "aaaa"}}));
  const std::string text(1 << 20, 'a');
  const auto ids =
      tokenizer->Encode(text, false);  // a quadratic merge would run into the time limit
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ(ids->size(), (1u << 20) / 8);
}

TEST(TokenizerTest, RandomTextSurvivesTheRoundTrip) {
  const auto tokenizer = Load(TestTokenizerJson(
      {{"a", "b"}, {"ab", "a"}, {"\u0120", "a"}, {"b", "b"}, {"\u00c3", "\u00a9"}}));
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed) +
               "; repeat with --gtest_filter=TokenizerTest.RandomTextSurvivesTheRoundTrip");
  std::mt19937 random(seed);
  for (int round = 0; round < 500; ++round) {
    std::string text;
    for (auto i = random() % 40; i > 0; --i)
      AppendUtf8(random() % 3 == 0 ? 0xE0 + random() % 0x400 : 'a' + random() % 3, &text);
    EXPECT_EQ(tokenizer->Decode(*tokenizer->Encode(text, false), false), text);
  }
}

TEST(TokenizerJsonTest, SentencePieceStyleFilesAreRefusedByName) {
  json file = TestTokenizerJson();
  file["model"]["byte_fallback"] = true;
  EXPECT_EQ(LoadError(file).code(), absl::StatusCode::kUnimplemented);
  EXPECT_TRUE(Mentions(LoadError(file), "byte_fallback"));
  file = TestTokenizerJson();
  file["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "\u2581"}};
  EXPECT_TRUE(Mentions(LoadError(file), "Metaspace"));
}

TEST(TokenizerJsonTest, UnknownKeysAndKindsAreNamed) {
  const std::vector<std::pair<json::json_pointer, json>> changes = {
      {json::json_pointer("/mystery"), 1},
      {json::json_pointer("/model/mystery"), 1},
      {json::json_pointer("/normalizer"), {{"type", "mystery"}}},
      {json::json_pointer("/pre_tokenizer"), {{"type", "mystery"}}},
      {json::json_pointer("/pre_tokenizer/mystery"), true},
      {json::json_pointer("/post_processor"), {{"type", "mystery"}}},
      {json::json_pointer("/decoder"), {{"type", "mystery"}}},
      {json::json_pointer("/model/type"), "mystery"},
      {json::json_pointer("/model/merges"), json::array({"mystery a"})},
  };
  for (const auto& [pointer, value] : changes) {
    json file = TestTokenizerJson();
    file[pointer] = value;
    const absl::Status status = LoadError(file);
    EXPECT_FALSE(status.ok()) << pointer;
    EXPECT_TRUE(Mentions(status, "mystery")) << status;
  }
}

TEST(TokenizerJsonTest, VocabularyWithoutAByteIsRefused) {
  json file = TestTokenizerJson();
  file["model"]["vocab"].erase("A");
  EXPECT_TRUE(Mentions(LoadError(file), "0x41"));
}

TEST(TokenizerJsonTest, TruncatedFileIsAnErrorAtEveryLength) {
  const std::string text = TestTokenizerJson({{"a", "b"}}).dump();
  for (size_t size = 0; size < text.size(); size += 37) {
    EXPECT_FALSE(Tokenizer::FromJson(text.substr(0, size)).ok()) << size;
  }
}

TEST(TokenizerJsonTest, DeepNestingIsRefusedBeforeParsing) {
  EXPECT_TRUE(Mentions(Tokenizer::FromJson(std::string(100000, '[')).status(), "nested"));
}

}  // namespace
}  // namespace baton::text
