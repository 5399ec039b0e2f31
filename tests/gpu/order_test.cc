// Ops that are launched together, or on queues beside the main one: the results of one after the
// other.
#include <cuda_runtime_api.h>
#include <driver_types.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "kernels/core/exec_context.h"
#include "kernels/core/landing_memory.h"
#include "kernels/core/side_queues.h"
#include "kernels/cuda/runtime/copy_stream.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/cuda/runtime/device_space.h"
#include "kernels/cuda/runtime/graph_cache.h"
#include "kernels/cuda/runtime/landing_stream.h"
#include "kernels/cuda/runtime/launch_cache.h"
#include "kernels/cuda/runtime/side_streams.h"
#include "tests/gpu/support/gpu_test.h"

namespace baton::kernels::cuda {
namespace {

constexpr int64_t kDim = 4096;

// Copies of rows, long enough that work in another order shows.
class OrderGpuTest : public GpuTest {
 protected:
  static constexpr int64_t kRows = 8192;

  using Rows = DeviceArray<uint16_t>;

  static Rows Empty() { return Rows::Poisoned(static_cast<size_t>(kRows * kDim)); }
  // Row i is i + first everywhere.
  static std::vector<uint16_t> Numbered(int64_t first) {
    std::vector<uint16_t> values(static_cast<size_t>(kRows * kDim));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<uint16_t>(static_cast<int64_t>(i) / kDim + first);
    }
    return values;
  }
  static DeviceArray<int32_t> Backwards() {
    std::vector<int32_t> index(kRows);
    std::iota(index.rbegin(), index.rend(), 0);
    return DeviceArray<int32_t>(index);
  }

  absl::Status Turn(const ExecContext& exec,
                    const DeviceArray<int32_t>& index,
                    const Rows& from,
                    const Rows& to) const {
    return ops().gather_rows(exec,
                             {.x = from.data(),
                              .x_stride = kDim,
                              .row_index = index.data(),
                              .rows = kRows,
                              .dim = kDim,
                              .out = to.data(),
                              .out_stride = kDim});
  }
};

TEST_F(OrderGpuTest, AGraphDoesWhatItsOpsDoWithWhatIsThere) {
  GraphCache graphs(queue());
  DeviceSpace space(queue(), &graphs);
  ExecContext exec = context();
  exec.memory = &space;
  exec.graphs = &graphs;
  const DeviceArray<int32_t> index = Backwards();
  const Rows a = Empty();
  const Rows b = Empty();
  const Rows c = Empty();
  // One by one, captured, launched; then another step, and the first again.
  for (int step = 0; step < 8; ++step) {
    const bool other = step == 5;
    const std::vector<uint16_t> values = Numbered(step);
    ASSERT_TRUE(
        space.Upload(reinterpret_cast<std::byte*>(a.data()), values.data(), values.size() * 2)
            .ok());
    graphs.Begin();
    ASSERT_TRUE(Turn(exec, index, a, b).ok());
    ASSERT_TRUE(Turn(exec, index, other ? a : b, c).ok());
    std::vector<uint16_t> got(values.size());
    ASSERT_TRUE(space.Download(got.data(), c.data(), got.size() * 2).ok());
    ASSERT_TRUE(graphs.End().ok());
    EXPECT_EQ(got.front(), other ? kRows - 1 + step : step) << "step " << step;
    EXPECT_EQ(got == values, !other) << "step " << step;
  }
}

TEST_F(OrderGpuTest, MoreStepsThanAreRememberedAreRight) {
  GraphCache graphs(queue());
  DeviceSpace space(queue(), &graphs);
  ExecContext exec = context();
  exec.graphs = &graphs;
  const DeviceArray<int32_t> index = Backwards();
  const Rows a(Numbered(3));
  std::vector<Rows> targets;
  targets.reserve(LaunchCache::kRemembered + 3);
  for (size_t i = 0; i < LaunchCache::kRemembered + 3; ++i) {
    targets.push_back(DeviceArray<uint16_t>::Poisoned(static_cast<size_t>(kRows * kDim)));
  }
  for (int round = 0; round < 3; ++round) {
    for (const Rows& target : targets) {
      graphs.Begin();
      ASSERT_TRUE(Turn(exec, index, a, target).ok());
      ASSERT_TRUE(graphs.End().ok());
    }
  }
  Wait();
  for (const Rows& target : targets) {
    EXPECT_EQ(target.Get(), targets.front().Get());
  }
}

TEST_F(OrderGpuTest, AFailedOpOfAGraphIsReportedAndTheNextStepRuns) {
  GraphCache graphs(queue());
  ExecContext exec = context();
  exec.graphs = &graphs;
  const DeviceArray<int32_t> index = Backwards();
  const Rows a(Numbered(0));
  const Rows b = Empty();
  for (int round = 0; round < 3; ++round) {
    graphs.Begin();
    ASSERT_TRUE(Turn(exec, index, a, b).ok());
    ASSERT_TRUE(ops().gather_rows(exec, {.rows = -1}).ok());
    EXPECT_EQ(graphs.End().code(), absl::StatusCode::kInvalidArgument);
  }
  ASSERT_TRUE(Turn(exec, index, b, a).ok());
  Wait();
}

// The main queue is shared in between.
TEST_F(OrderGpuTest, SideQueuesStartBehindTheForkAndEndBeforeTheJoin) {
  auto side = SideStreams::Create(queue(), {2, size_t{1} << 20}, {1, size_t{1} << 20});
  ASSERT_TRUE(side.ok()) << side.status();
  const DeviceArray<int32_t> index = Backwards();
  const std::vector<uint16_t> values = Numbered(0);
  for (int round = 0; round < 4; ++round) {
    const Rows a(values);
    const Rows turned = Empty();
    std::vector<Rows> by_side;
    by_side.reserve(5);
    for (int32_t i = 0; i < 5; ++i) {
      by_side.push_back(DeviceArray<uint16_t>::Poisoned(static_cast<size_t>(kRows * kDim)));
    }
    const Rows last = Empty();
    ASSERT_TRUE(Turn(context(), index, a, turned).ok());
    EXPECT_FALSE(queue().shared());
    for (int32_t i = 0; i < 5; ++i) {
      const auto forked = (*side)->Fork(context(), i < 2 ? SideRank::kFirst : SideRank::kLast, i);
      ASSERT_TRUE(forked.ok()) << forked.status();
      ASSERT_TRUE(Turn(*forked, index, turned, by_side[static_cast<size_t>(i)]).ok());
    }
    EXPECT_TRUE(queue().shared());
    ASSERT_TRUE((*side)->Join().ok());
    EXPECT_FALSE(queue().shared());
    ASSERT_TRUE(Turn(context(), index, by_side.back(), last).ok());
    Wait();
    for (const Rows& rows : by_side) {
      ASSERT_EQ(rows.Get(), values) << "round " << round;
    }
    ASSERT_EQ(last.Get(), turned.Get()) << "round " << round;
  }
}

// Each call of Pace comes back when what was called before the last but one is done.
TEST_F(OrderGpuTest, TheHostIsTwoPacesAheadOfTheMainQueueAtMost) {
  auto side = SideStreams::Create(queue(), {1, size_t{1} << 20}, {1, size_t{1} << 20});
  ASSERT_TRUE(side.ok()) << side.status();
  const DeviceArray<int32_t> index = Backwards();
  const Rows a(Numbered(0));
  const Rows b = Empty();
  constexpr int kPaces = 6;
  std::vector<cudaEvent_t> done(kPaces);
  for (int i = 0; i < kPaces; ++i) {
    for (int turns = 0; turns < 200; ++turns) ASSERT_TRUE(Turn(context(), index, a, b).ok());
    ASSERT_EQ(cudaEventCreate(&done[static_cast<size_t>(i)]), cudaSuccess);
    ASSERT_EQ(cudaEventRecord(done[static_cast<size_t>(i)], queue().stream()), cudaSuccess);
    ASSERT_TRUE((*side)->Pace().ok());
    if (i >= 2) {
      EXPECT_EQ(cudaEventQuery(done[static_cast<size_t>(i - 2)]), cudaSuccess) << i;
    }
  }
  Wait();
  for (const cudaEvent_t event : done) cudaEventDestroy(event);
}

TEST_F(OrderGpuTest, TheMainQueueWaitsForTheSideQueueThatItAwaits) {
  auto side = SideStreams::Create(queue(), {2, size_t{1} << 20}, {1, size_t{1} << 20});
  ASSERT_TRUE(side.ok()) << side.status();
  const DeviceArray<int32_t> index = Backwards();
  const std::vector<uint16_t> values = Numbered(0);
  for (int round = 0; round < 4; ++round) {
    const Rows a(values);
    const Rows turned = Empty();
    const Rows last = Empty();
    const auto forked = (*side)->Fork(context(), SideRank::kFirst, 1);
    ASSERT_TRUE(forked.ok()) << forked.status();
    ASSERT_TRUE(Turn(*forked, index, a, turned).ok());
    ASSERT_TRUE((*side)->Await(1).ok());
    ASSERT_TRUE(Turn(context(), index, turned, last).ok());
    Wait();
    ASSERT_EQ(last.Get(), values) << "round " << round;
  }
}

// More of them than are on their way at once, in pieces that begin anywhere.
TEST_F(OrderGpuTest, ReadsOfSeveralPiecesGetTheBytesOfEach) {
  DeviceSpace space(queue());
  const auto landing = LandingStream::Create();
  ASSERT_TRUE(landing.ok()) << landing.status();
  std::vector<std::byte> bytes(size_t{1} << 20);
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>(i * 2654435761u >> 24);
  const auto landed = space.Allocate(bytes.size());
  ASSERT_TRUE(landed.ok()) << landed.status();
  ASSERT_TRUE((*landing)->Write(landed->data(), bytes).ok());
  ASSERT_TRUE((*landing)->Wait().ok());
  const std::vector<std::pair<size_t, size_t>> pieces = {{5, 3},
                                                         {900001, 0},
                                                         {4096, 8192},
                                                         {17, 1000},
                                                         {160, 320000},
                                                         {100, 600000},
                                                         {0, 1},
                                                         {bytes.size() - 7, 7}};
  std::vector<std::vector<std::byte>> read;
  std::vector<LandedRead> reads;
  read.reserve(pieces.size());
  reads.reserve(pieces.size());
  for (const auto& [begin, size] : pieces) read.emplace_back(size);
  for (size_t i = 0; i < pieces.size(); ++i) {
    reads.push_back({.target = read[i], .source = landed->data() + pieces[i].first});
  }
  ASSERT_TRUE((*landing)->ReadAll(reads).ok());
  for (size_t i = 0; i < pieces.size(); ++i) {
    EXPECT_TRUE(std::equal(
        read[i].begin(), read[i].end(), bytes.begin() + static_cast<int64_t>(pieces[i].first)))
        << "piece " << i;
  }
}

// Bytes that land, and copies within the device and to staging memory, are there when they have
// been waited for. Copies come behind the ops that they follow, whatever the queue does since.
TEST_F(OrderGpuTest, StagedCopiesAreInOrderWithOps) {
  DeviceSpace space(queue());
  const auto copies = CopyStream::Create();
  ASSERT_TRUE(copies.ok()) << copies.status();
  const auto landing = LandingStream::Create();
  ASSERT_TRUE(landing.ok()) << landing.status();
  const size_t bytes = static_cast<size_t>(kRows * kDim) * sizeof(uint16_t);
  const auto landed = space.Allocate(bytes);
  const auto target = space.staging().Allocate(bytes);
  ASSERT_TRUE(landed.ok() && target.ok()) << landed.status() << target.status();
  const DeviceArray<int32_t> index = Backwards();
  const Rows a = Empty();
  const Rows b = Empty();
  const Rows c = Empty();
  ExecContext exec = context();
  exec.memory = &space;
  for (int round = 0; round < 4; ++round) {
    const std::vector<uint16_t> values = Numbered(round);
    ASSERT_TRUE((*landing)->Write(landed->data(), std::as_bytes(std::span(values))).ok());
    ASSERT_TRUE((*landing)->Wait().ok());
    std::vector<std::byte> read(bytes);
    ASSERT_TRUE((*landing)->Read(read, landed->data()).ok());
    EXPECT_EQ(std::memcmp(read.data(), values.data(), bytes), 0);
    ASSERT_TRUE((*copies)->Follow(exec).ok());
    const CopyQueue::Piece piece = {
        .target = reinterpret_cast<std::byte*>(a.data()), .source = landed->data(), .bytes = bytes};
    ASSERT_TRUE((*copies)->StartMoves(std::span(&piece, 1)).ok());
    const auto moved = (*copies)->MakeMark();
    ASSERT_TRUE(moved.ok()) << moved.status();
    ASSERT_TRUE((*moved)->Wait().ok());
    ASSERT_TRUE(Turn(exec, index, a, b).ok());
    ASSERT_TRUE((*copies)->Follow(exec).ok());
    ASSERT_TRUE(
        (*copies)
            ->StartDownload(target->data(), reinterpret_cast<const std::byte*>(b.data()), bytes)
            .ok());
    const auto mark = (*copies)->MakeMark();
    ASSERT_TRUE(mark.ok()) << mark.status();
    ASSERT_TRUE(Turn(exec, index, a, c).ok());
    ASSERT_TRUE((*mark)->Wait().ok());
    for (const int64_t row : {int64_t{0}, kRows / 2, kRows - 1}) {
      EXPECT_EQ(target->as<uint16_t>()[row * kDim], static_cast<uint16_t>(kRows - 1 - row + round));
    }
    Wait();
  }
}

// Work of the device that lasts until it is let go, at most for kLongest.
class HeldQueue {
 public:
  static constexpr absl::Duration kLongest = absl::Seconds(20);

  explicit HeldQueue(const DeviceQueue& queue) {
    EXPECT_EQ(cudaLaunchHostFunc(queue.stream(), Hold, this), cudaSuccess);
  }
  void LetGo() { let_go_.Notify(); }
  // Once the queue has been waited for.
  bool was_let_go() const { return was_let_go_; }

 private:
  static void Hold(void* self) {
    auto* const held = static_cast<HeldQueue*>(self);
    held->was_let_go_ = held->let_go_.WaitForNotificationWithTimeout(kLongest);
  }

  absl::Notification let_go_;
  bool was_let_go_ = false;
};

TEST_F(OrderGpuTest, CopiesOfOtherThreadsGoOnWhileADownloadWaits) {
  DeviceSpace space(queue());
  const auto copies = CopyStream::Create();
  ASSERT_TRUE(copies.ok()) << copies.status();
  const auto target = space.staging().Allocate(kDim);
  ASSERT_TRUE(target.ok()) << target.status();
  const std::vector<uint8_t> bytes(size_t{3} << 20, 7);
  const DeviceArray<uint8_t> source(bytes);
  std::vector<uint8_t> downloaded(bytes.size());
  HeldQueue held(queue());
  std::thread waiter([&] {
    EXPECT_TRUE(space.Download(downloaded.data(), source.data(), downloaded.size()).ok());
  });
  // Enough for it to be inside; with less the test could only miss something.
  absl::SleepFor(absl::Milliseconds(200));
  const auto* const begin = reinterpret_cast<const std::byte*>(source.data());
  EXPECT_TRUE((*copies)->StartDownload(target->data(), begin, kDim).ok());
  const auto mark = (*copies)->MakeMark();
  ASSERT_TRUE(mark.ok()) << mark.status();
  EXPECT_TRUE((*mark)->Wait().ok());
  held.LetGo();
  waiter.join();
  EXPECT_TRUE(held.was_let_go()) << "the copy came only when the queue was done";
  EXPECT_EQ(downloaded, bytes);
}

}  // namespace
}  // namespace baton::kernels::cuda
