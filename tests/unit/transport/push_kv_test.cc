// PushKv against a sender that keeps no rules.
#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "absl/time/clock.h"
#include "grpcpp/create_channel.h"
#include "gtest/gtest.h"

#include "common/transport/grpc/push_stream.h"
#include "kernels/core/landing_memory.h"
#include "tests/unit/transport/transport_pair.h"

namespace baton::transport {
namespace {

using worker::v1::KvChunk;
using worker::v1::KvChunkAck;

class PushKvTest : public testing::Test {
 protected:
  PushKvTest() : memory_(kWindowBytes, std::byte{0xee}) {
    window_ = *pair_.receiver().Register({std::span(memory_)}, kernels::HostLanding());
    stub_ = worker::v1::KvTransfer::NewStub(grpc::CreateChannel(
        pair_.receiver().connection_data(), grpc::InsecureChannelCredentials()));
    EXPECT_TRUE(
        pair_.receiver()
            .Expect(
                {.window = window_.get(), .runs = {{0, kWindowBytes}}, .transfer_id = 1, .tag = 1})
            .ok());
  }

  KvChunk Chunk(uint64_t offset, size_t size) const {
    KvChunk chunk;
    chunk.set_window(window_->descriptor());
    chunk.set_transfer_id(1);
    chunk.set_offset(offset);
    chunk.set_payload(std::string(size, 'x'));
    return chunk;
  }
  // Sends the chunks and returns the ack, or code -1 when the stream ended without one.
  KvChunkAck Push(const std::vector<KvChunk>& chunks) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(20)));
    const auto stream = stub_->PushKv(&context);
    for (const KvChunk& chunk : chunks) {
      stream->Write(chunk);
    }
    stream->WritesDone();
    KvChunkAck ack;
    if (!stream->Read(&ack)) {
      ack.set_code(-1);
    }
    stream->Finish().ok();
    return ack;
  }
  bool MemoryUntouched() const {
    return std::all_of(
        memory_.begin(), memory_.end(), [](std::byte byte) { return byte == std::byte{0xee}; });
  }

  static constexpr int64_t kWindowBytes = 3 << 20;
  GrpcPair pair_;
  std::vector<std::byte> memory_;
  std::unique_ptr<Window> window_;
  std::unique_ptr<worker::v1::KvTransfer::Stub> stub_;
};

TEST_F(PushKvTest, OversizeChunkIsRefused) {
  EXPECT_EQ(Push({Chunk(0, kMaxChunkBytes + 1)}).code(),
            static_cast<int>(absl::StatusCode::kInvalidArgument));
  EXPECT_TRUE(MemoryUntouched());
}

TEST_F(PushKvTest, OffsetsOutsideTheWindowAreRefused) {
  for (const uint64_t offset :
       {uint64_t{kWindowBytes}, uint64_t{1} << 62, uint64_t{1} << 63, UINT64_MAX}) {
    EXPECT_NE(Push({Chunk(offset, 10)}).code(), 0) << offset;
  }
  EXPECT_TRUE(MemoryUntouched());
}

TEST_F(PushKvTest, TotalMismatchIsRefused) {
  KvChunk last = Chunk(0, 10);
  last.set_total_bytes(10);
  EXPECT_EQ(Push({last}).code(), static_cast<int>(absl::StatusCode::kInvalidArgument));
  const auto received = pair_.receiver().Poll(absl::Now() + absl::Seconds(20));
  ASSERT_EQ(received.size(), 1u);
  EXPECT_FALSE(received[0].status.ok());
}

TEST_F(PushKvTest, RepeatedBytesAreRefused) {
  EXPECT_EQ(Push({Chunk(0, 10), Chunk(5, 10)}).code(),
            static_cast<int>(absl::StatusCode::kInvalidArgument));
}

TEST_F(PushKvTest, AnotherTransferInTheStreamIsRefused) {
  KvChunk other = Chunk(10, 10);
  other.set_transfer_id(2);
  EXPECT_EQ(Push({Chunk(0, 10), other}).code(),
            static_cast<int>(absl::StatusCode::kInvalidArgument));
}

TEST_F(PushKvTest, EmptyChunksAreRefused) {
  EXPECT_EQ(Push({Chunk(0, 0)}).code(), static_cast<int>(absl::StatusCode::kInvalidArgument));
}

TEST_F(PushKvTest, MissingWindowIsRefused) {
  KvChunk chunk = Chunk(0, 10);
  chunk.clear_window();
  EXPECT_EQ(Push({chunk}).code(), static_cast<int>(absl::StatusCode::kFailedPrecondition));
}

TEST_F(PushKvTest, StreamThatStopsInTheMiddleFailsTheTransfer) {
  EXPECT_NE(Push({Chunk(0, 10)}).code(), 0);
  const auto received = pair_.receiver().Poll(absl::Now() + absl::Seconds(20));
  ASSERT_EQ(received.size(), 1u);
  EXPECT_EQ(received[0].status.code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace baton::transport
