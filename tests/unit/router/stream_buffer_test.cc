#include "services/router/session/stream_buffer.h"

#include <string>

#include "gtest/gtest.h"

namespace baton::router {
namespace {

inference::v1::Delta Delta(uint32_t index, uint32_t token, const std::string& text) {
  inference::v1::Delta delta;
  delta.set_index(index);
  delta.add_token_ids(token);
  delta.set_text(text);
  return delta;
}

inference::v1::Finished Finished(uint32_t index) {
  inference::v1::Finished finished;
  finished.set_index(index);
  return finished;
}

TEST(StreamBufferTest, MergesDeltasOfOneSequenceThatWait) {
  StreamBuffer buffer("r");
  buffer.AddDelta(Delta(0, 1, "a"));
  buffer.AddDelta(Delta(1, 2, "x"));
  buffer.AddDelta(Delta(0, 3, "b"));
  inference::v1::GenerateStreamResponse message;
  ASSERT_TRUE(buffer.Pop(&message));
  EXPECT_EQ(message.request_id(), "r");
  EXPECT_EQ(message.delta().text(), "ab");
  EXPECT_EQ(message.delta().token_ids_size(), 2);
  ASSERT_TRUE(buffer.Pop(&message));
  EXPECT_EQ(message.delta().text(), "x");
  EXPECT_FALSE(buffer.Pop(&message));
  EXPECT_EQ(buffer.bytes(), 0u);
}

TEST(StreamBufferTest, ADeltaNeverJoinsAMessageThatWasTaken) {
  StreamBuffer buffer("r");
  inference::v1::GenerateStreamResponse message;
  buffer.AddDelta(Delta(0, 1, "a"));
  ASSERT_TRUE(buffer.Pop(&message));
  buffer.AddDelta(Delta(0, 2, "b"));
  ASSERT_TRUE(buffer.Pop(&message));
  EXPECT_EQ(message.delta().text(), "b");
}

TEST(StreamBufferTest, KeepsFinishedBehindItsDeltasAndUsageLast) {
  StreamBuffer buffer("r");
  buffer.AddDelta(Delta(0, 1, "a"));
  buffer.AddFinished(Finished(0));
  buffer.AddDelta(Delta(1, 2, "x"));
  buffer.AddFinished(Finished(1));
  buffer.AddUsage({});
  inference::v1::GenerateStreamResponse message;
  ASSERT_TRUE(buffer.Pop(&message));
  EXPECT_TRUE(message.has_delta());
  ASSERT_TRUE(buffer.Pop(&message));
  EXPECT_TRUE(message.has_finished());
  ASSERT_TRUE(buffer.Pop(&message));
  EXPECT_EQ(message.delta().index(), 1u);
  ASSERT_TRUE(buffer.Pop(&message));
  ASSERT_TRUE(buffer.Pop(&message));
  EXPECT_TRUE(message.has_usage());
}

TEST(StreamBufferTest, AnEmptyDeltaIsDropped) {
  StreamBuffer buffer("r");
  buffer.AddDelta({});
  EXPECT_TRUE(buffer.empty());
}

TEST(StreamBufferTest, AMessageStopsGrowingFarBelowTheReceiveLimit) {
  StreamBuffer buffer("r");
  const std::string piece(1000, 'a');
  for (int i = 0; i < 1000; ++i) {
    buffer.AddDelta(Delta(0, 1, piece));
  }
  EXPECT_GE(buffer.bytes(), 1000u * 1000u);
  size_t text_bytes = 0;
  inference::v1::GenerateStreamResponse message;
  while (buffer.Pop(&message)) {
    EXPECT_LT(message.ByteSizeLong(), size_t{70} << 10);
    text_bytes += message.delta().text().size();
  }
  EXPECT_EQ(text_bytes, 1000u * 1000u);
}

TEST(StreamBufferTest, ClearDropsEverything) {
  StreamBuffer buffer("r");
  buffer.AddDelta(Delta(0, 1, "a"));
  buffer.Clear();
  EXPECT_TRUE(buffer.empty());
  EXPECT_EQ(buffer.bytes(), 0u);
  buffer.AddDelta(Delta(0, 2, "b"));
  inference::v1::GenerateStreamResponse message;
  ASSERT_TRUE(buffer.Pop(&message));
  EXPECT_EQ(message.delta().text(), "b");
}

}  // namespace
}  // namespace baton::router
