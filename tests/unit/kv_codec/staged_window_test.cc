// Memory for prompts on their way: where pages lie.
#include "common/kv/codec/staged_window.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/kv/pool/run_pool.h"
#include "kernels/core/copy_queue.h"
#include "kernels/core/landing_memory.h"

namespace baton::kv {
namespace {

constexpr StagedShape kShape = {.layers = 3, .window = {.pages_per_layer = 5, .page_bytes = 64}};

class StagedWindowTest : public testing::Test {
 protected:
  std::unique_ptr<StagedWindow> Take(const StagedShape& shape) const {
    return StagedWindow::Take(pool_, kernels::HostLanding(), shape);
  }

  const std::shared_ptr<RunPool> pool_ = *RunPool::Create(4 * RunPool::kUnitBytes);
  std::vector<std::byte> device_ = std::vector<std::byte>(10 * 64);
};

TEST_F(StagedWindowTest, PagesFollowEachOtherInWindowOrder) {
  const auto window = Take(kShape);
  ASSERT_NE(window, nullptr);
  const std::span<std::byte> memory = window->memory();
  ASSERT_EQ(memory.size(), 15u * 64);
  for (int32_t i = 0; i < 15; ++i) {
    const std::span<std::byte> page = window->pages(i / 5, i % 5, 1);
    EXPECT_EQ(page.data(), memory.data() + i * 64);
    EXPECT_EQ(page.size(), 64u);
  }
}

TEST_F(StagedWindowTest, PagesOfALayerAreMovedInOrder) {
  const auto window = Take(kShape);
  const auto targets =
      std::vector{std::span(device_).first(64), std::span(device_).subspan(320, 128)};
  std::vector<kernels::CopyQueue::Piece> moves;
  window->AddMoves(/*layer=*/1, /*page_begin=*/0, targets, moves);
  window->AddMoves(/*layer=*/0, /*page_begin=*/0, {}, moves);
  window->AddMoves(/*layer=*/2, /*page_begin=*/3, std::span(targets).first(1), moves);
  ASSERT_EQ(moves.size(), 3u);
  EXPECT_EQ(moves[0].target, device_.data());
  EXPECT_EQ(moves[0].source, window->pages(1, 0, 1).data());
  EXPECT_EQ(moves[0].bytes, 64u);
  EXPECT_EQ(moves[1].target, device_.data() + 320);
  EXPECT_EQ(moves[1].source, window->pages(1, 1, 1).data());
  EXPECT_EQ(moves[1].bytes, 128u);
  EXPECT_EQ(moves[2].target, device_.data());
  EXPECT_EQ(moves[2].source, window->pages(2, 3, 1).data());
  EXPECT_EQ(moves[2].bytes, 64u);
}

TEST_F(StagedWindowTest, HiddenStatesAreOneLayerMoreOfPagesOfTheirOwn) {
  StagedShape shape = kShape;
  shape.hidden_pages = 2;
  shape.hidden_page_bytes = 192;
  EXPECT_EQ(shape.bytes(), 15 * 64 + 2 * 192);
  const auto window = Take(shape);
  ASSERT_NE(window, nullptr);
  const std::span<std::byte> memory = window->memory();
  ASSERT_EQ(memory.size(), 15u * 64 + 2 * 192);
  EXPECT_EQ(window->pages(3, 0, 2).data(), memory.data() + 15 * 64);
  EXPECT_EQ(window->pages(3, 0, 2).size(), 2u * 192);
  EXPECT_EQ(window->pages(3, 1, 1).data(), memory.data() + 15 * 64 + 192);
}

TEST_F(StagedWindowTest, APoolWithoutRoomGivesNoneAndGetsAllBack) {
  const int64_t all = pool_->bytes_free();
  const StagedShape half = {.layers = 1, .window = {.pages_per_layer = 1, .page_bytes = all / 2}};
  EXPECT_EQ(half.bytes(), all / 2);
  {
    const auto first = Take(half);
    ASSERT_NE(first, nullptr);
    EXPECT_EQ(first->ReservedBytes(), all / 2);
    StagedShape whole = half;
    whole.layers = 2;
    EXPECT_EQ(Take(whole), nullptr);
    const auto second = Take(half);
    EXPECT_NE(second, nullptr);
    EXPECT_EQ(pool_->bytes_free(), 0);
  }
  EXPECT_EQ(pool_->bytes_free(), all);
}

}  // namespace
}  // namespace baton::kv
