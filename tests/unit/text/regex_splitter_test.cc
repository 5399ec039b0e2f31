#include "common/text/regex_splitter.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace baton::text {
namespace {

std::vector<std::string> Pieces(std::string_view pattern, std::string_view text) {
  const auto splitter = RegexSplitter::Create(pattern);
  EXPECT_TRUE(splitter.ok()) << splitter.status();
  std::vector<std::string> pieces;
  EXPECT_TRUE(splitter
                  ->Split(text,
                          [&](std::string_view piece) {
                            pieces.emplace_back(piece);
                            return absl::OkStatus();
                          })
                  .ok());
  return pieces;
}

TEST(RegexSplitterTest, GapsBetweenMatchesArePieces) {
  EXPECT_EQ(Pieces("b+", "abbacb"), (std::vector<std::string>{"a", "bb", "ac", "b"}));
  EXPECT_EQ(Pieces("x*", "aé"), (std::vector<std::string>{"aé"}));
}

TEST(RegexSplitterTest, Gpt2PatternKeepsTheLastSpaceForTheWord) {
  EXPECT_EQ(Pieces(kGpt2Pattern, "I'll  go 42!"),
            (std::vector<std::string>{"I", "'ll", " ", " go", " 42", "!"}));
}

TEST(RegexSplitterTest, WhiteSpaceIsThatOfUnicode) {
  EXPECT_EQ(Pieces(R"(\s+)", "a\u0085\u00a0b"),
            (std::vector<std::string>{"a", "\u0085\u00a0", "b"}));
  EXPECT_EQ(Pieces(R"(\s+)", "a\u180eb"), (std::vector<std::string>{"a\u180eb"}));
  EXPECT_EQ(Pieces(R"([^\s]+)", "a\u180eb"), (std::vector<std::string>{"a\u180eb"}));
}

TEST(RegexSplitterTest, ConstructsThatEnginesReadDifferentlyAreRefused) {
  for (const char* pattern :
       {R"(\h)", R"([\S])", "[a[b]]", "[a&&b]", "(?m:a)", "(*UTF)", R"(\K)"}) {
    EXPECT_EQ(RegexSplitter::Create(pattern).status().code(), absl::StatusCode::kUnimplemented)
        << pattern;
  }
  EXPECT_EQ(RegexSplitter::Create("a(").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(RegexSplitterTest, LongRunsNeedNoMachineStack) {
  const std::string spaces(4 << 20, ' ');
  EXPECT_EQ(Pieces(kGpt2Pattern, spaces).size(), 1u);
}

}  // namespace
}  // namespace baton::text
