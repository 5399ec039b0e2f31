// The page manager of a generation step in format `diffkv`: which slot of which head of which layer
// gets which page.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

#include "kernels/kv_format/diffkv.h"
#include "kernels/reference/reference_ops.h"
#include "tests/kernels/support/backends.h"
#include "tests/kernels/support/diffkv_step.h"

namespace baton::kernels {
namespace {

using Ids = std::vector<int32_t>;

class DiffKvTakePagesTest : public BackendTest {
 protected:
  absl::Status Take(DiffKvStep& step) { return step.TakePages(ops(), *context_); }

  TestContext context_{ReferenceOps(), 1};
};

// Pages of 32 high and 64 low tokens.
constexpr DiffKvGeometry kGeometry = {.kv_heads = 2, .head_dim = 128};

TEST_P(DiffKvTakePagesTest, IdsGoToLayersHeadsAndTiersInOrder) {
  DiffKvStep step({.geometry = kGeometry, .layers = 2, .sequences = 1, .columns = 4}, 8);
  step.SetHead({0, 0, 0},
               {32, 64},
               {.high_slot = 32, .demoted_to = 64, .appended = true, .low_appended = true});
  step.SetHead({0, 0, 1}, {0, 0}, {.high_slot = 0, .appended = true});
  step.SetHead({1, 0, 0}, {5, 0}, {.high_slot = 5, .appended = true});
  step.SetHead({1, 0, 1}, {7, 64}, {.high_slot = 3, .demoted_to = 64, .low_appended = true});
  const int32_t held = step.PageOf({1, 0, 1}, kDiffKvHigh, 0);
  ASSERT_TRUE(Take(step).ok());
  EXPECT_EQ(step.leases[0].used, 4);
  const Ids& ids = step.ids[0];
  EXPECT_EQ(step.PagesOfAction({0, 0, 0}), (Ids{ids[0], ids[1]}));
  EXPECT_EQ(step.PagesOfAction({0, 0, 1}), (Ids{ids[2], -1}));
  EXPECT_EQ(step.PagesOfAction({1, 0, 0}), (Ids{step.PageOf({1, 0, 0}, kDiffKvHigh, 0), -1}));
  EXPECT_EQ(step.PagesOfAction({1, 0, 1}), (Ids{held, ids[3]}));
  EXPECT_EQ(step.PageOf({0, 0, 0}, kDiffKvHigh, 1), ids[0]);
  EXPECT_EQ(step.PageOf({0, 0, 0}, kDiffKvLow, 1), ids[1]);
  EXPECT_EQ(step.CountsOf({0, 0, 0}), (Ids{33, 65}));
  EXPECT_EQ(step.CountsOf({1, 0, 0}), (Ids{6, 0}));
  EXPECT_EQ(step.CountsOf({1, 0, 1}), (Ids{7, 65}));
}

TEST_P(DiffKvTakePagesTest, TokensThatNothingWasDecidedForGoBehindTheHighOnes) {
  DiffKvStep step({.geometry = kGeometry, .layers = 1, .sequences = 1, .columns = 4}, 8);
  step.SetHead({0, 0, 0}, {32, 3}, {.high_slot = 7, .demoted_to = 1});
  step.SetHead({0, 0, 1}, {31, 0}, {});
  step.sweeps[0] = false;
  ASSERT_TRUE(Take(step).ok());
  EXPECT_EQ(step.leases[0].used, 1);
  EXPECT_EQ(step.PagesOfAction({0, 0, 0}), (Ids{step.ids[0][0], -1}));
  EXPECT_EQ(step.CountsOf({0, 0, 0}), (Ids{33, 3}));
  EXPECT_EQ(step.CountsOf({0, 0, 1}), (Ids{32, 0}));
}

TEST_P(DiffKvTakePagesTest, NewPagesAreZerosAndOthersAreNotTouched) {
  DiffKvStep step({.geometry = kGeometry, .layers = 1, .sequences = 2, .columns = 4}, 8);
  step.SetHead({0, 0, 0}, {32, 0}, {.high_slot = 32, .appended = true});
  step.SetHead({0, 0, 1}, {1, 0}, {.high_slot = 0});
  step.SetHead({0, 1, 0}, {1, 0}, {.high_slot = 1, .appended = true});
  step.SetHead({0, 1, 1}, {1, 64}, {.high_slot = 0, .demoted_to = 64, .low_appended = true});
  ASSERT_TRUE(Take(step).ok());
  EXPECT_THAT(step.ZeroPages(), testing::UnorderedElementsAre(step.ids[0][0], step.ids[1][0]));
}

TEST_P(DiffKvTakePagesTest, ALeaseThatIsShortForTheLastLayerIsRefusedAndNothingChanges) {
  DiffKvStep step({.geometry = kGeometry, .layers = 3, .sequences = 2, .columns = 4}, 5);
  for (int32_t layer = 0; layer < 3; ++layer) {
    for (int32_t sequence = 0; sequence < 2; ++sequence) {
      for (int32_t head = 0; head < 2; ++head) {
        const int32_t count = sequence == 0 ? 3 : 32;  // six pages for the second one
        step.SetHead({layer, sequence, head}, {count, 0}, {.high_slot = count, .appended = true});
      }
    }
  }
  const DiffKvStep before = step;
  const absl::Status status = Take(step);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  step.ExpectSameState(before, /*with_actions=*/false);
}

TEST_P(DiffKvTakePagesTest, ATableWithoutAColumnIsRefusedAndNothingChanges) {
  DiffKvStep step({.geometry = kGeometry, .layers = 1, .sequences = 1, .columns = 2}, 8);
  step.SetHead({0, 0, 0}, {32, 1}, {.high_slot = 32, .appended = true});
  step.SetHead({0, 0, 1}, {32, 0}, {.high_slot = 32, .appended = true});
  const DiffKvStep before = step;
  EXPECT_EQ(Take(step).code(), absl::StatusCode::kResourceExhausted);
  step.ExpectSameState(before, /*with_actions=*/false);
}

TEST_P(DiffKvTakePagesTest, NoLayersOrSequencesDoNothing) {
  EXPECT_TRUE(ops().diffkv_take_pages(*context_, {}).ok());
}

INSTANTIATE_TEST_SUITE_P(Backends,
                         DiffKvTakePagesTest,
                         testing::ValuesIn(kBackends),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace baton::kernels
