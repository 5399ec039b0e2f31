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
  const std::array<SequenceSlice, 3> sequences_ = {{{0, 500}, {500, 0}, {500, 200}}};
  ForwardBatch batch_;
};

TEST_F(RowSetTest, TilesCutSequences) {
  RowSet rows(700, frequencies_);
  ASSERT_TRUE(rows.SetAll(batch_, kernels::ReferenceOps(), exec_).ok());
  ASSERT_EQ(rows.tiles().size(), 2u);
  using Runs = std::vector<kv::RowRun>;
  const kv::KvRows first = rows.Rows(rows.tiles()[0]);
  EXPECT_EQ(first.rows, 512);
  EXPECT_EQ(Runs(first.runs.begin(), first.runs.end()),
            (Runs{{.sequence = 0, .row_begin = 0, .row_count = 500},
                  {.sequence = 2, .row_begin = 500, .row_count = 12}}));
  const kv::KvRows second = rows.Rows(rows.tiles()[1]);
  EXPECT_EQ(Runs(second.runs.begin(), second.runs.end()),
            (Runs{{.sequence = 2, .row_begin = 0, .row_count = 188}}));
  EXPECT_EQ(second.positions[0], 512);
}

TEST_F(RowSetTest, SurvivorsKeepTheirSequenceAndPosition) {
  const std::vector<int32_t> survivors = {3, 499, 500, 699};
  batch_.survivors = survivors;
  RowSet rows(700, frequencies_);
  ASSERT_TRUE(rows.SetSurvivors(batch_, kernels::ReferenceOps(), exec_).ok());
  ASSERT_EQ(rows.rows(), 4);
  ASSERT_EQ(rows.tiles().size(), 1u);
  const kv::KvRows kept = rows.Rows(rows.tiles()[0]);
  using Runs = std::vector<kv::RowRun>;
  EXPECT_EQ(Runs(kept.runs.begin(), kept.runs.end()),
            (Runs{{.sequence = 0, .row_begin = 0, .row_count = 2},
                  {.sequence = 2, .row_begin = 2, .row_count = 2}}));
  EXPECT_EQ(kept.positions[3], 699);
}

}  // namespace
}  // namespace baton::model
