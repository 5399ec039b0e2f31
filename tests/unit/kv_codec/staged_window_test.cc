// Host memory for prompts on their way: where pages lie, and how few copies bring them there.
#include "common/kv/codec/staged_window.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/kv/pool/run_pool.h"
#include "kernels/core/copy_queue.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/landing_memory.h"
#include "kernels/core/memory.h"

namespace baton::kv {
namespace {

constexpr StagedShape kShape = {.layers = 3, .window = {.pages_per_layer = 5, .page_bytes = 64}};

// Copies at once, and counts.
class CountingCopies final : public kernels::CopyQueue {
 public:
  absl::Status Follow(const kernels::ExecContext& /*exec*/) override { return absl::OkStatus(); }
  absl::Status StartDownload(std::byte* target, const std::byte* source, size_t bytes) override {
    ++copies_;
    return kernels::HostMemory().Download(target, source, bytes);
  }
  absl::Status StartMoves(std::span<const Piece> pieces) override {
    for (const Piece& piece : pieces) {
      ++copies_;
      std::memcpy(piece.target, piece.source, piece.bytes);
    }
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<Mark>> MakeMark() override {
    return absl::UnimplementedError("nobody waits");
  }
  int TakeCopies() { return std::exchange(copies_, 0); }

 private:
  int copies_ = 0;
};

class StagedWindowTest : public testing::Test {
 protected:
  StagedWindowTest() {
    for (size_t i = 0; i < device_.size(); ++i) {
      device_[i] = static_cast<std::byte>(i / 64 + 1);
    }
  }
  // Page `id` of the device.
  std::span<std::byte> Page(size_t id) { return std::span(device_).subspan(id * 64, 64); }

  absl::Status Move(const StagedWindow& window,
                    int32_t layer,
                    std::span<const std::span<std::byte>> targets) {
    std::vector<kernels::CopyQueue::Piece> moves;
    window.AddMoves(layer, targets, moves);
    return copies_.StartMoves(moves);
  }

  const std::shared_ptr<RunPool> pool_ = *RunPool::Create(4 * RunPool::kUnitBytes);
  std::vector<std::byte> device_ = std::vector<std::byte>(10 * 64);
  CountingCopies copies_;
};

TEST_F(StagedWindowTest, PagesFollowEachOtherInWindowOrder) {
  const auto window = StagedWindow::Take(pool_, kernels::HostLanding(), kShape);
  ASSERT_NE(window, nullptr);
  const std::span<std::byte> memory = window->memory();
  ASSERT_EQ(memory.size(), 15u * 64);
  for (int32_t i = 0; i < 15; ++i) {
    const std::span<std::byte> page = window->page(i / 5, i % 5);
    EXPECT_EQ(page.data(), memory.data() + i * 64);
    EXPECT_EQ(page.size(), 64u);
  }
}

TEST_F(StagedWindowTest, PagesInOnePieceAreOneCopy) {
  const auto window = StagedWindow::Take(pool_, kernels::HostLanding(), kShape);
  const std::vector<std::span<const std::byte>> sources = {Page(7), Page(8), Page(2), Page(3)};
  ASSERT_TRUE(window->StartDownload(copies_, /*layer=*/1, /*page_begin=*/1, sources).ok());
  EXPECT_EQ(copies_.TakeCopies(), 2);
  for (size_t i = 0; i < sources.size(); ++i) {
    EXPECT_EQ(window->page(1, 1 + static_cast<int32_t>(i))[63], sources[i][63]);
  }
  EXPECT_EQ(window->page(1, 0)[0], std::byte{0});
  EXPECT_EQ(window->page(2, 0)[0], std::byte{0});

  const std::vector<std::span<std::byte>> targets = {Page(0), Page(5), Page(6)};
  ASSERT_TRUE(Move(*window, /*layer=*/1, targets).ok());
  EXPECT_EQ(copies_.TakeCopies(), 2);
  EXPECT_EQ(Page(0)[0], std::byte{0});
  EXPECT_EQ(Page(5)[0], std::byte{8});
  EXPECT_EQ(Page(6)[63], std::byte{9});
  ASSERT_TRUE(Move(*window, /*layer=*/0, {}).ok());
  EXPECT_EQ(copies_.TakeCopies(), 0);
}

TEST_F(StagedWindowTest, HiddenStatesAreOneLayerMoreOfPagesOfTheirOwn) {
  StagedShape shape = kShape;
  shape.hidden_pages = 2;
  shape.hidden_page_bytes = 192;
  EXPECT_EQ(shape.bytes(), 15 * 64 + 2 * 192);
  const auto window = StagedWindow::Take(pool_, kernels::HostLanding(), shape);
  ASSERT_NE(window, nullptr);
  const std::span<std::byte> memory = window->memory();
  ASSERT_EQ(memory.size(), 15u * 64 + 2 * 192);
  EXPECT_EQ(window->page(3, 0).data(), memory.data() + 15 * 64);
  EXPECT_EQ(window->page(3, 0).size(), 192u);
  EXPECT_EQ(window->page(3, 1).data(), memory.data() + 15 * 64 + 192);

  const std::span<const std::byte> source = std::span(device_).subspan(3 * 64, 192);
  ASSERT_TRUE(
      window->StartDownload(copies_, /*layer=*/3, /*page_begin=*/1, std::span(&source, 1)).ok());
  EXPECT_EQ(window->page(3, 1)[0], source[0]);
  EXPECT_EQ(window->page(3, 1)[191], source[191]);
  const std::vector<std::span<std::byte>> targets = {std::span(device_).first(192),
                                                     std::span(device_).subspan(192, 192)};
  ASSERT_TRUE(Move(*window, /*layer=*/3, targets).ok());
  EXPECT_EQ(copies_.TakeCopies(), 2) << "both pages in one piece";
  EXPECT_EQ(device_[192], std::byte{4});
}

TEST_F(StagedWindowTest, APoolWithoutRoomGivesNoneAndGetsAllBack) {
  const int64_t all = pool_->bytes_free();
  const StagedShape half = {.layers = 1, .window = {.pages_per_layer = 1, .page_bytes = all / 2}};
  EXPECT_EQ(half.bytes(), all / 2);
  {
    const auto first = StagedWindow::Take(pool_, kernels::HostLanding(), half);
    ASSERT_NE(first, nullptr);
    EXPECT_EQ(first->ReservedBytes(), all / 2);
    StagedShape whole = half;
    whole.layers = 2;
    EXPECT_EQ(StagedWindow::Take(pool_, kernels::HostLanding(), whole), nullptr);
    const auto second = StagedWindow::Take(pool_, kernels::HostLanding(), half);
    EXPECT_NE(second, nullptr);
    EXPECT_EQ(pool_->bytes_free(), 0);
  }
  EXPECT_EQ(pool_->bytes_free(), all);
}

}  // namespace
}  // namespace baton::kv
