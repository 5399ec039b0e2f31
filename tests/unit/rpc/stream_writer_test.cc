#include "common/rpc/stream_writer.h"

#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "proto/baton/worker/v1/sampling.pb.h"

namespace baton::rpc {
namespace {

using worker::v1::TokenDelta;

// Stands for gRPC: records what is written; the test says when a write is done.
struct FakeReactor {
  void StartWrite(const TokenDelta* message) { written.push_back(*message); }
  void Finish(grpc::Status status) { final_status = std::move(status); }

  std::vector<TokenDelta> written;
  std::optional<grpc::Status> final_status;
};

using Writer = StreamWriter<TokenDelta, FakeReactor>;

TokenDelta Delta(uint32_t index, uint32_t token) {
  TokenDelta delta;
  delta.set_index(index);
  delta.add_tokens()->set_id(token);
  return delta;
}

bool MergeSameIndex(TokenDelta& last, const TokenDelta& next) {
  if (last.index() != next.index()) {
    return false;
  }
  last.mutable_tokens()->MergeFrom(next.tokens());
  return true;
}

std::vector<uint32_t> Tokens(const TokenDelta& delta) {
  std::vector<uint32_t> ids;
  for (const auto& token : delta.tokens()) {
    ids.push_back(token.id());
  }
  return ids;
}

TEST(StreamWriterTest, OneWriteIsInFlightAndOrderIsKept) {
  FakeReactor reactor;
  Writer writer(&reactor, 1024, {});
  ASSERT_TRUE(writer.Write(Delta(0, 1)).ok());
  ASSERT_TRUE(writer.Write(Delta(0, 2)).ok());
  ASSERT_TRUE(writer.Write(Delta(0, 3)).ok());
  EXPECT_EQ(reactor.written.size(), 1U);
  writer.OnWriteDone(true);
  EXPECT_EQ(reactor.written.size(), 2U);
  writer.OnWriteDone(true);
  writer.OnWriteDone(true);
  ASSERT_EQ(reactor.written.size(), 3U);
  EXPECT_EQ(Tokens(reactor.written[2]), (std::vector<uint32_t>{3}));
}

TEST(StreamWriterTest, WaitingTokensOfASequenceBecomeOneMessage) {
  FakeReactor reactor;
  Writer writer(&reactor, 1024, MergeSameIndex);
  for (uint32_t token = 1; token <= 5; ++token) {
    ASSERT_TRUE(writer.Write(Delta(0, token)).ok());
  }
  ASSERT_TRUE(writer.Write(Delta(1, 9)).ok());
  ASSERT_TRUE(writer.Write(Delta(0, 6)).ok());
  EXPECT_EQ(writer.merged_messages(), 3U);
  for (int i = 0; i < 4; ++i) {
    writer.OnWriteDone(true);
  }
  ASSERT_EQ(reactor.written.size(), 4U);
  EXPECT_EQ(Tokens(reactor.written[0]), (std::vector<uint32_t>{1}));
  EXPECT_EQ(Tokens(reactor.written[1]), (std::vector<uint32_t>{2, 3, 4, 5}));
  EXPECT_EQ(Tokens(reactor.written[2]), (std::vector<uint32_t>{9}));
  EXPECT_EQ(Tokens(reactor.written[3]), (std::vector<uint32_t>{6}));
  EXPECT_EQ(writer.pending_bytes(), 0U);
}

TEST(StreamWriterTest, FullBufferRefusesThatMessageAndEveryLaterOne) {
  FakeReactor reactor;
  const size_t message_bytes = Delta(0, 1).ByteSizeLong();
  Writer writer(&reactor, 3 * message_bytes, MergeSameIndex);
  ASSERT_TRUE(writer.Write(Delta(0, 1)).ok());  // in flight
  for (uint32_t token = 2; token <= 4; ++token) {
    ASSERT_TRUE(writer.Write(Delta(0, token)).ok());
  }
  EXPECT_EQ(writer.Write(Delta(0, 5)).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(writer.pending_bytes(), 3 * message_bytes);
  writer.OnWriteDone(true);
  EXPECT_EQ(writer.Write(Delta(0, 6)).code(), absl::StatusCode::kResourceExhausted)
      << "a stream with a hole must not go on";
  EXPECT_TRUE(writer.Finish(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "slow"), true));
  writer.OnWriteDone(true);
  ASSERT_TRUE(reactor.final_status.has_value());
  EXPECT_EQ(reactor.final_status->error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST(StreamWriterTest, FinishComesAfterEverythingThatWaits) {
  FakeReactor reactor;
  Writer writer(&reactor, 1024, {});
  ASSERT_TRUE(writer.Write(Delta(0, 1)).ok());
  ASSERT_TRUE(writer.Write(Delta(0, 2)).ok());
  EXPECT_TRUE(writer.Finish(grpc::Status::OK));
  EXPECT_EQ(writer.Write(Delta(0, 3)).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(writer.Finish(grpc::Status::CANCELLED)) << "only the first Finish counts";
  EXPECT_FALSE(reactor.final_status.has_value());
  writer.OnWriteDone(true);
  EXPECT_FALSE(reactor.final_status.has_value());
  writer.OnWriteDone(true);
  ASSERT_TRUE(reactor.final_status.has_value());
  EXPECT_TRUE(reactor.final_status->ok());
  EXPECT_EQ(reactor.written.size(), 2U);
}

TEST(StreamWriterTest, FinishThatDiscardsSkipsWhatWaits) {
  FakeReactor reactor;
  Writer writer(&reactor, 1024, {});
  ASSERT_TRUE(writer.Write(Delta(0, 1)).ok());
  ASSERT_TRUE(writer.Write(Delta(0, 2)).ok());
  EXPECT_TRUE(writer.Finish(grpc::Status::CANCELLED, /*discard_pending=*/true));
  EXPECT_FALSE(reactor.final_status.has_value()) << "the write in flight must end first";
  writer.OnWriteDone(true);
  EXPECT_TRUE(reactor.final_status.has_value());
  EXPECT_EQ(reactor.written.size(), 1U);
}

TEST(StreamWriterTest, BrokenStreamDropsWhatWaitsAndStillFinishesOnce) {
  FakeReactor reactor;
  Writer writer(&reactor, 1024, {});
  ASSERT_TRUE(writer.Write(Delta(0, 1)).ok());
  ASSERT_TRUE(writer.Write(Delta(0, 2)).ok());
  writer.OnWriteDone(false);
  EXPECT_EQ(reactor.written.size(), 1U);
  EXPECT_EQ(writer.pending_bytes(), 0U);
  EXPECT_EQ(writer.Write(Delta(0, 3)).code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(writer.Finish(grpc::Status::CANCELLED));
  EXPECT_TRUE(reactor.final_status.has_value());
}

// Delivers completions from another thread, as gRPC does.
class ThreadedReactor {
 public:
  void StartWrite(const TokenDelta* message) {
    for (const auto& token : message->tokens()) {
      received.push_back(token.id());
    }
    absl::MutexLock lock(&mutex);
    ++started;
  }
  void Finish(grpc::Status) {
    absl::MutexLock lock(&mutex);
    finished = true;
  }

  std::vector<uint32_t> received;  // only touched by the single write in flight
  absl::Mutex mutex;
  int started = 0;
  bool finished = false;
};

TEST(StreamWriterTest, EveryTokenArrivesOnceAndInOrderAcrossThreads) {
  ThreadedReactor reactor;
  StreamWriter<TokenDelta, ThreadedReactor> writer(&reactor, 1 << 20, MergeSameIndex);
  std::thread completions([&] {
    int done = 0;
    while (true) {
      {
        absl::MutexLock lock(&reactor.mutex);
        auto changed = [&]() { return reactor.finished || reactor.started > done; };
        reactor.mutex.Await(absl::Condition(&changed));
        if (reactor.finished) {
          return;
        }
      }
      ++done;
      writer.OnWriteDone(true);
    }
  });
  constexpr uint32_t kTokens = 5000;
  for (uint32_t token = 0; token < kTokens; ++token) {
    ASSERT_TRUE(writer.Write(Delta(0, token)).ok());
  }
  writer.Finish(grpc::Status::OK);
  completions.join();
  ASSERT_EQ(reactor.received.size(), kTokens);
  for (uint32_t token = 0; token < kTokens; ++token) {
    ASSERT_EQ(reactor.received[token], token);
  }
}

}  // namespace
}  // namespace baton::rpc
