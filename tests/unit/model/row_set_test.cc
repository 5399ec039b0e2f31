#include "common/model/row_set.h"

#include <array>
#include <numeric>
#include <vector>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"

#include "common/kv/codec/step_kv.h"
#include "common/model/forward.h"
#include "kernels/core/memory.h"
#include "kernels/core/step_arrays.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/ops/op_table.h"

namespace baton::model {
namespace {

using Runs = std::vector<kv::RowRun>;

Runs RunsOf(const kv::KvRows& tile) { return {tile.runs.begin(), tile.runs.end()}; }

// Three sequences of 500, 0 and 200 rows: the first tile boundary (512) cuts the third.
class RowSetTest : public testing::Test {
 protected:
  RowSetTest() : positions_(700) {
    std::iota(positions_.begin(), positions_.end(), 0);
    batch_.positions = positions_;
    batch_.token_ids = positions_;
    batch_.sequences = sequences_;
  }
  static RowSet Make(int32_t tile_rows) {
    return RowSet::Create(700, tile_rows, 2, kernels::HostMemory()).value();
  }

  kernels::StepArrays arrays_{kernels::HostMemory()};
  std::vector<int32_t> positions_;
  const std::array<SequenceSlice, 3> sequences_ = {{{0, 500}, {500, 0}, {500, 200}}};
  ForwardBatch batch_;
};

TEST_F(RowSetTest, TilesCutSequences) {
  RowSet rows = Make(512);
  rows.SetAll(batch_, 3, arrays_);
  ASSERT_EQ(rows.tiles().size(), 2u);
  const kv::KvRows& first = rows.tiles()[0];
  EXPECT_EQ(first.tile, 3);
  EXPECT_EQ(first.row_begin, 0);
  EXPECT_EQ(first.rows, 512);
  EXPECT_EQ(RunsOf(first),
            (Runs{{.sequence = 0, .row_begin = 0, .row_count = 500},
                  {.sequence = 2, .row_begin = 500, .row_count = 12}}));
  const kv::KvRows& second = rows.tiles()[1];
  EXPECT_EQ(second.tile, 4);
  EXPECT_EQ(second.row_begin, 512);
  EXPECT_EQ(RunsOf(second), (Runs{{.sequence = 2, .row_begin = 0, .row_count = 188}}));
  EXPECT_EQ(second.positions[0], 512);
  EXPECT_EQ(second.op_positions[0], 512);
}

TEST_F(RowSetTest, SurvivorsKeepTheirSequenceAndPosition) {
  const std::vector<int32_t> survivors = {3, 499, 500, 699};
  batch_.survivors = survivors;
  RowSet rows = Make(512);
  rows.SetSurvivors(batch_, 0, arrays_);
  ASSERT_EQ(rows.rows(), 4);
  ASSERT_EQ(rows.tiles().size(), 1u);
  const kv::KvRows& kept = rows.tiles()[0];
  EXPECT_EQ(RunsOf(kept),
            (Runs{{.sequence = 0, .row_begin = 0, .row_count = 2},
                  {.sequence = 2, .row_begin = 2, .row_count = 2}}));
  EXPECT_EQ(kept.positions[3], 699);
}

TEST_F(RowSetTest, ABackEndWithoutTilesTakesAStepWhole) {
  kernels::OpTable ops = kernels::CpuOps();
  EXPECT_EQ(TileRows(ops, 700), 512);
  EXPECT_EQ(TileRows(ops, 100), 100);
  ops.tile_rows = 0;
  EXPECT_EQ(TileRows(ops, 700), 700);
  RowSet rows = Make(700);
  rows.SetAll(batch_, 0, arrays_);
  ASSERT_EQ(rows.tiles().size(), 1u);
  EXPECT_EQ(rows.tiles()[0].rows, 700);
}

}  // namespace
}  // namespace baton::model
