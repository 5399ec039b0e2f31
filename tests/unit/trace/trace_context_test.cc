#include "common/trace/trace_context.h"

#include <string>

#include "gtest/gtest.h"

namespace baton::trace {
namespace {

constexpr char kTrace[] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

TEST(TraceContextTest, ReadsWhatTheSpecificationShows) {
  const auto context = ParseTraceparent(kTrace);
  ASSERT_TRUE(context.has_value());
  EXPECT_EQ(ToHex(context->trace_id), "0af7651916cd43dd8448eb211c80319c");
  EXPECT_EQ(ToHex(context->span_id), "b7ad6b7169203331");
  EXPECT_TRUE(context->sampled);
  EXPECT_EQ(ToTraceparent(*context), kTrace);
}

TEST(TraceContextTest, OnlyTheLowestFlagMeansSampled) {
  const std::string start(kTrace, 53);
  EXPECT_FALSE(ParseTraceparent(start + "00")->sampled);
  EXPECT_FALSE(ParseTraceparent(start + "fe")->sampled);
  EXPECT_TRUE(ParseTraceparent(start + "03")->sampled);
}

TEST(TraceContextTest, LaterVersionsAreReadAsFarAsTheyAreKnown) {
  const std::string rest(kTrace + 2);
  EXPECT_TRUE(ParseTraceparent("cc" + rest).has_value());
  EXPECT_TRUE(ParseTraceparent("cc" + rest + "-what-the-future-will-be-like").has_value());
  EXPECT_FALSE(ParseTraceparent("cc" + rest + ".what").has_value());
  EXPECT_FALSE(ParseTraceparent("00" + rest + "-what").has_value());
  EXPECT_FALSE(ParseTraceparent("ff" + rest).has_value());
}

TEST(TraceContextTest, MalformedOnesAreRefused) {
  for (const char* text : {
           "",
           "00",
           "00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
           "00-00000000000000000000000000000000-b7ad6b7169203331-01",
           "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
           "00-0af7651916cd43dd8448eb211c80319-b7ad6b71692033310-01",
           "00_0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
           "0g-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
           "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0x",
           "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01 ",
       }) {
    EXPECT_FALSE(ParseTraceparent(text).has_value()) << text;
  }
}

TEST(TraceContextTest, EveryCutAndEveryChangedByteIsReadOrRefused) {
  const std::string text = kTrace;
  for (size_t length = 0; length < text.size(); ++length) {
    EXPECT_FALSE(ParseTraceparent(text.substr(0, length)).has_value()) << length;
  }
  for (size_t at = 0; at < text.size(); ++at) {
    for (int byte = 0; byte < 256; ++byte) {
      std::string changed = text;
      changed[at] = static_cast<char>(byte);
      if (const auto context = ParseTraceparent(changed); context.has_value()) {
        EXPECT_TRUE(ParseTraceparent(ToTraceparent(*context)) == context) << changed;
      }
    }
  }
}

TEST(TraceContextTest, NewIdsDiffer) {
  EXPECT_NE(NewTraceId(), NewTraceId());
  EXPECT_NE(NewSpanId(), NewSpanId());
  EXPECT_TRUE(Draw(1.0));
  EXPECT_FALSE(Draw(0.0));
}

}  // namespace
}  // namespace baton::trace
