// Ops that are gathered and launched together.
#include "kernels/core/op_graphs.h"  // IWYU pragma: keep

#include <gtest/gtest.h>

#include <algorithm>  // IWYU pragma: keep (where padding is cleared, like <new>)
#include <cstddef>
#include <cstdint>
#include <new>  // IWYU pragma: keep
#include <vector>

#include "absl/status/status.h"

#include "kernels/core/exec_context.h"
#include "kernels/ops/gathered_op.h"
#include "tests/kernels/device_double/gathering_memory.h"
#include "tests/kernels/device_double/replayed_graphs.h"

namespace baton::kernels {
namespace {

// Appends `value` to `log`; the bytes between are padding.
struct NoteParams {
  std::vector<int64_t>* log = nullptr;
  bool fails = false;
  int64_t value = 0;
};

absl::Status NoteNow(const ExecContext& /*context*/, const NoteParams& params) {
  if (params.fails) {
    return absl::InvalidArgumentError("told to fail");
  }
  params.log->push_back(params.value);
  return absl::OkStatus();
}

constexpr absl::Status (*kNote)(const ExecContext&, const NoteParams&) = GatheredOp<NoteNow>;

class OpGraphsTest : public testing::Test {
 protected:
  OpGraphsTest() { exec_.graphs = &graphs_; }

  absl::Status Note(int64_t value, bool fails = false) {
    return kNote(exec_, {.log = &log_, .fails = fails, .value = value});
  }

  ReplayedGraphs graphs_;
  ExecContext exec_;
  std::vector<int64_t> log_;
};

using Log = std::vector<int64_t>;

TEST_F(OpGraphsTest, OpsRunAtOnceUnlessTheyAreGathered) {
  ASSERT_TRUE(Note(1).ok());
  EXPECT_EQ(log_, Log({1}));
  graphs_.Begin();
  ASSERT_TRUE(Note(2).ok());
  ASSERT_TRUE(Note(3).ok());
  EXPECT_EQ(log_, Log({1}));
  ASSERT_TRUE(graphs_.Flush().ok());
  EXPECT_EQ(log_, Log({1, 2, 3}));
  ASSERT_TRUE(Note(4).ok());
  ASSERT_TRUE(graphs_.End().ok());
  ASSERT_TRUE(Note(5).ok());
  EXPECT_EQ(log_, Log({1, 2, 3, 4, 5}));
  EXPECT_EQ(graphs_.launches(), 2);
  EXPECT_TRUE(graphs_.End().ok()) << "nothing is left to launch";
  EXPECT_EQ(graphs_.launches(), 2);
}

TEST_F(OpGraphsTest, CallsAreTheSameIfTheirParametersAre) {
  for (const int64_t value : {7, 7, 8, 7}) {
    graphs_.Begin();
    ASSERT_TRUE(Note(1).ok());
    ASSERT_TRUE(Note(value).ok());
    ASSERT_TRUE(graphs_.End().ok());
  }
  EXPECT_EQ(graphs_.launches(), 4);
  EXPECT_EQ(graphs_.distinct(), 2);
}

#if BATON_CLEARS_PADDING
TEST_F(OpGraphsTest, PaddingOfParametersTellsNothing) {
  for (const std::byte filling : {std::byte{0}, std::byte{0xff}}) {
    alignas(NoteParams) std::byte memory[sizeof(NoteParams)];
    std::fill_n(memory, sizeof(memory), filling);
    auto* const params = new (memory) NoteParams;
    params->log = &log_;
    params->value = 3;
    graphs_.Begin();
    ASSERT_TRUE(kNote(exec_, *params).ok());
    ASSERT_TRUE(graphs_.End().ok());
  }
  EXPECT_EQ(graphs_.distinct(), 1);
}
#endif

TEST_F(OpGraphsTest, NothingRunsBehindAnOpThatFails) {
  graphs_.Begin();
  ASSERT_TRUE(Note(1).ok());
  ASSERT_TRUE(Note(2, /*fails=*/true).ok());
  ASSERT_TRUE(Note(3).ok());
  EXPECT_EQ(graphs_.End().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(log_, Log({1}));
  ASSERT_TRUE(Note(4).ok());
  EXPECT_EQ(log_, Log({1, 4}));
}

TEST_F(OpGraphsTest, CopiesComeBehindTheOpsBeforeThem) {
  GatheringMemory memory(graphs_);
  const auto block = memory.Allocate(8);
  ASSERT_TRUE(block.ok()) << block.status();
  int64_t value = 5;
  graphs_.Begin();
  ASSERT_TRUE(Note(1).ok());
  ASSERT_TRUE(memory.Upload(block->data(), &value, sizeof(value)).ok());
  EXPECT_EQ(log_, Log({1}));
  ASSERT_TRUE(Note(2).ok());
  ASSERT_TRUE(memory.Download(&value, block->data(), sizeof(value)).ok());
  EXPECT_EQ(log_, Log({1, 2}));
  ASSERT_TRUE(Note(3).ok());
  ASSERT_TRUE(memory.Zero(block->data(), sizeof(value)).ok());
  EXPECT_EQ(log_, Log({1, 2, 3}));
  ASSERT_TRUE(Note(4, /*fails=*/true).ok());
  EXPECT_EQ(memory.Download(&value, block->data(), sizeof(value)).code(),
            absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(graphs_.End().ok());
}

}  // namespace
}  // namespace baton::kernels
