#include "common/model/row_set.h"

#include <array>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/core/thread_pool.h"
#include "kernels/select.h"

namespace baton::model {
namespace {

// Three sequences of 500, 0 and 200 rows: the first tile boundary (512) cuts the third.
class RowSetTest : public testing::Test {
 protected:
  RowSetTest() : positions_(700) {
    std::iota(positions_.begin(), positions_.end(), 0);
    batch_.positions = positions_;
    batch_.token_ids = positions_;
    batch_.sequences = sequences_;
  }
  kernels::ThreadPool pool_{1};
  kernels::Buffer workspace_;
  const kernels::ExecContext exec_ = {.pool = &pool_, .workspace = &workspace_};
  const std::array<float, 2> frequencies_ = {1.0f, 0.5f};
  std::vector<int32_t> positions_;
  std::array<int32_t, 8> tables_ = {};
  const std::array<SequenceSlice, 3> sequences_ = {{{0, 500, tables_.data(), 2},
                                                    {500, 0, tables_.data() + 1, 2},
                                                    {500, 200, tables_.data() + 4, 2}}};
  ForwardBatch batch_;
};

TEST_F(RowSetTest, TilesCutSequences) {
  RowSet rows(700, frequencies_);
  ASSERT_TRUE(rows.SetAll(batch_, kernels::ReferenceOps(), exec_).ok());
  ASSERT_EQ(rows.tiles().size(), 2u);
  const auto first = rows.Sequences(rows.tiles()[0], 1);
  ASSERT_EQ(first.size(), 2u);
  EXPECT_EQ(first[0].row_begin, 0);
  EXPECT_EQ(first[0].row_count, 500);
  EXPECT_EQ(first[0].page_table, tables_.data() + 2);
  EXPECT_EQ(first[1].row_begin, 500);
  EXPECT_EQ(first[1].row_count, 12);
  EXPECT_EQ(first[1].page_table, tables_.data() + 6);
  const auto second = rows.Sequences(rows.tiles()[1], 0);
  ASSERT_EQ(second.size(), 1u);
  EXPECT_EQ(second[0].row_begin, 0);
  EXPECT_EQ(second[0].row_count, 188);
  EXPECT_EQ(rows.positions(rows.tiles()[1])[0], 512);
}

TEST_F(RowSetTest, SurvivorsKeepTheirSequenceAndPosition) {
  const std::vector<int32_t> survivors = {3, 499, 500, 699};
  batch_.survivors = survivors;
  RowSet rows(700, frequencies_);
  ASSERT_TRUE(rows.SetSurvivors(batch_, kernels::ReferenceOps(), exec_).ok());
  ASSERT_EQ(rows.rows(), 4);
  ASSERT_EQ(rows.tiles().size(), 1u);
  const auto sequences = rows.Sequences(rows.tiles()[0], 0);
  ASSERT_EQ(sequences.size(), 2u);
  EXPECT_EQ(sequences[0].row_count, 2);
  EXPECT_EQ(sequences[1].row_begin, 2);
  EXPECT_EQ(sequences[1].row_count, 2);
  EXPECT_EQ(sequences[1].page_table, tables_.data() + 4);
  EXPECT_EQ(rows.positions(rows.tiles()[0])[3], 699);
}

}  // namespace
}  // namespace baton::model
