// Lists of spans that together are one run of bytes.
#include "common/base/pieces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <random>
#include <span>
#include <utility>
#include <vector>

namespace baton {
namespace {

using testing::IsEmpty;

class PiecesTest : public testing::Test {
 protected:
  std::span<const int> At(size_t begin, size_t count) const {
    return std::span(memory_).subspan(begin, count);
  }

  const std::vector<int> memory_ = std::vector<int>(100);
};

void ExpectSame(std::span<const int> got, std::span<const int> want) {
  EXPECT_EQ(got.data(), want.data());
  EXPECT_EQ(got.size(), want.size());
}

TEST_F(PiecesTest, NeighboursThatLieOneBehindTheOtherAreOnePiece) {
  const std::vector<std::span<const int>> pieces = {
      At(10, 5), At(15, 1), At(0, 0), At(16, 4), At(4, 6), At(30, 2), At(32, 0)};
  const auto joined = JoinAdjacent<const int>(pieces);
  ASSERT_EQ(joined.size(), 3u);
  ExpectSame(joined[0], At(10, 10));
  ExpectSame(joined[1], At(4, 6));
  ExpectSame(joined[2], At(30, 2));
  EXPECT_EQ(BytesOf(joined), 18u);
  EXPECT_THAT(JoinAdjacent<const int>({}), IsEmpty());
}

TEST_F(PiecesTest, AReaderHandsOutEverythingInOrderAndNeverAcrossPieces) {
  const std::vector<std::span<const int>> pieces = {At(10, 5), At(50, 0), At(20, 3)};
  PieceReader reader(pieces);
  ExpectSame(reader.Next(2), At(10, 2));
  ExpectSame(reader.Next(100), At(12, 3));
  ExpectSame(reader.Next(3), At(20, 3));
  EXPECT_TRUE(reader.Next(1).empty());
  EXPECT_TRUE(reader.Next(1).empty());
  const std::vector<std::span<const int>> none;
  EXPECT_TRUE(PieceReader(none).Next(1).empty());
}

TEST_F(PiecesTest, BehindTheFirstBytesLiesTheRest) {
  const std::vector<std::span<const int>> pieces = {At(0, 3), At(5, 4), At(20, 2)};
  const std::vector<std::pair<size_t, std::vector<std::span<const int>>>> cases = {
      {0, pieces},
      {2, {At(2, 1), At(5, 4), At(20, 2)}},
      {3, {At(5, 4), At(20, 2)}},
      {6, {At(8, 1), At(20, 2)}},
      {9, {}}};
  for (const auto& [bytes, want] : cases) {
    const std::vector<std::span<const int>> got = Behind(bytes, pieces);
    ASSERT_EQ(got.size(), want.size()) << bytes;
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_EQ(got[i].data(), want[i].data()) << bytes;
      EXPECT_EQ(got[i].size(), want[i].size()) << bytes;
    }
  }
}

TEST_F(PiecesTest, HoweverPiecesAreCutAReaderGivesTheSameBytes) {
  constexpr unsigned kSeed = 7;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  std::mt19937 random(kSeed);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::span<const int>> pieces;
    for (size_t begin = 0; begin < memory_.size();) {
      const size_t count = std::min<size_t>(random() % 20, memory_.size() - begin);
      pieces.push_back(At(begin, count));
      begin += count;
    }
    PieceReader reader(pieces);
    size_t read = 0;
    for (auto next = reader.Next(1 + random() % 9); !next.empty();
         next = reader.Next(1 + random() % 9)) {
      EXPECT_EQ(next.data(), memory_.data() + read);
      read += next.size();
    }
    EXPECT_EQ(read, memory_.size());
  }
}

}  // namespace
}  // namespace baton
