#include <gtest/gtest.h>

#include <string>

#include "common/text/byte_alphabet.h"
#include "common/text/nfc.h"
#include "common/text/utf8.h"

namespace baton::text {
namespace {

TEST(Utf8Test, FindsTheFirstInvalidByte) {
  EXPECT_EQ(FindInvalidUtf8("añ€😀"), std::string_view::npos);
  EXPECT_EQ(FindInvalidUtf8("a\xC0\x80"), 1u);         // overlong
  EXPECT_EQ(FindInvalidUtf8("ab\xED\xA0\x80"), 2u);    // surrogate
  EXPECT_EQ(FindInvalidUtf8("\xF4\x90\x80\x80"), 0u);  // beyond U+10FFFF
  EXPECT_EQ(FindInvalidUtf8("abc\xE2\x82"), 3u);       // unfinished
}

TEST(Utf8Test, RepairReplacesEachMaximalSubpartOnce) {
  EXPECT_EQ(RepairUtf8("\xE2\x82"
                       "A\xFF\xF0\x9F"),
            "\uFFFD"
            "A\uFFFD\uFFFD");
}

TEST(ByteAlphabetTest, EveryByteHasASpellingOfItsOwn) {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all.push_back(static_cast<char>(byte));
  const std::string spelled = SpellBytes(all);
  EXPECT_EQ(FindInvalidUtf8(spelled), std::string_view::npos);
  EXPECT_EQ(BytesFromSpelling(spelled), all);
  EXPECT_EQ(SpellBytes(" \n"), "ĠĊ");
  EXPECT_EQ(BytesFromSpelling("a b"), std::nullopt);
}

TEST(NfcTest, ComposesAndOrdersMarks) {
  EXPECT_EQ(*NormalizeNfc("e\u0301"), "\u00e9");
  EXPECT_EQ(*NormalizeNfc("a\u0301\u0323"), "\u1ea1\u0301");
  EXPECT_EQ(*NormalizeNfc("plain"), "plain");
}

TEST(NfcTest, LongMarkRunEqualsTheShortFormInOrder) {
  std::string marks;
  std::string above;
  std::string below;
  for (int i = 0; i < 100000; ++i) {
    marks += "\u0308\u0323";  // inserting one by one would take 10^10 steps
    above += "\u0308";
    below += "\u0323";
  }
  EXPECT_EQ(*NormalizeNfc("q" + marks), "q" + below + above);
}

}  // namespace
}  // namespace baton::text
