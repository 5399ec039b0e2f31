#include "tests/kernels/support/diffkv_step.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "absl/status/status.h"

#include "kernels/core/exec_context.h"
#include "kernels/kv_format/diffkv.h"
#include "kernels/ops/diffkv_pages.h"
#include "kernels/ops/diffkv_params.h"
#include "kernels/ops/op_table.h"
#include "tests/kernels/support/backends.h"

namespace baton::kernels {
namespace {

constexpr std::byte kUntouched{0xa5};

int32_t Below(std::mt19937& random, int32_t limit) {
  return static_cast<int32_t>(random() % static_cast<uint32_t>(limit));
}

DiffKvAction RandomAction(std::mt19937& random, int32_t high, int32_t low) {
  if (high == 0 || Below(random, 3) == 0) {
    return {.high_slot = high, .appended = true};
  }
  DiffKvAction action = {.high_slot = Below(random, high)};
  if (Below(random, 3) == 0) return action;
  action.low_appended = low == 0 || Below(random, 2) == 0;
  action.demoted_to = action.low_appended ? low : Below(random, low);
  return action;
}

}  // namespace

DiffKvStep::DiffKvStep(const DiffKvStepShape& step_shape, int32_t spare)
    : shape(step_shape),
      tables(static_cast<size_t>(step_shape.heads() * step_shape.columns), -1),
      counts(static_cast<size_t>(step_shape.heads() * kDiffKvTiers)),
      actions(static_cast<size_t>(step_shape.heads())),
      sweeps(static_cast<size_t>(int64_t{step_shape.layers} * step_shape.sequences), true),
      leases(static_cast<size_t>(step_shape.sequences)) {
  for (DiffKvLease& lease : leases) {
    lease.count = spare;
    std::vector<int32_t>& own = ids.emplace_back(static_cast<size_t>(spare));
    for (int32_t& id : own) id = next_page_++;
    std::shuffle(own.begin(), own.end(), std::mt19937(TestSeed()));
  }
  pool.assign(static_cast<size_t>(next_page_) * shape.geometry.page_bytes(), kUntouched);
}

size_t DiffKvStep::Index(const DiffKvStepHead& head) const {
  const int64_t row = int64_t{head.layer} * shape.sequences + head.sequence;
  return static_cast<size_t>(row * shape.geometry.kv_heads + head.head);
}

void DiffKvStep::SetHead(const DiffKvStepHead& head,
                         const std::vector<int32_t>& token_counts,
                         const DiffKvAction& action) {
  const size_t index = Index(head);
  const DiffKvLayer layer = {
      .page_table = tables.data() + index * static_cast<size_t>(shape.columns),
      .columns = shape.columns};
  for (int32_t tier = 0; tier < kDiffKvTiers; ++tier) {
    const int32_t count = token_counts[static_cast<size_t>(tier)];
    counts[index * kDiffKvTiers + static_cast<size_t>(tier)] = count;
    for (int32_t page = 0; page < shape.geometry.pages_for(tier, count); ++page) {
      DiffKvPageId(layer, 0, tier, page) = next_page_++;
    }
  }
  actions[index] = action;
  pool.resize(static_cast<size_t>(next_page_) * shape.geometry.page_bytes(), kUntouched);
}

void DiffKvStep::SetRandom(uint32_t seed) {
  std::mt19937 random(seed);
  const auto tokens = [&](int32_t tier) {
    const int32_t page = DiffKvPageTokens(shape.geometry.tiers[tier]);
    const int32_t most = (shape.columns / 2 - 1) * page;
    const int32_t any = Below(random, most + 1);
    return Below(random, 2) == 0 ? any : any / page * page;
  };
  for (int32_t layer = 0; layer < shape.layers; ++layer) {
    for (int32_t sequence = 0; sequence < shape.sequences; ++sequence) {
      sweeps[static_cast<size_t>(int64_t{layer} * shape.sequences + sequence)] =
          Below(random, 4) != 0;
      for (int32_t head = 0; head < shape.geometry.kv_heads; ++head) {
        const int32_t high = tokens(kDiffKvHigh);
        const int32_t low = tokens(kDiffKvLow);
        SetHead({layer, sequence, head}, {high, low}, RandomAction(random, high, low));
      }
    }
  }
}

absl::Status DiffKvStep::TakePages(const OpTable& ops, const ExecContext& context) {
  const std::vector<DiffKvAppendRow> rows = Rows();
  return ops.diffkv_take_pages(context,
                               {.rows = rows.data(),
                                .layers = shape.layers,
                                .sequences = shape.sequences,
                                .pages = Pages()});
}

std::vector<DiffKvAppendRow> DiffKvStep::Rows() {
  std::vector<DiffKvAppendRow> rows;
  for (int32_t layer = 0; layer < shape.layers; ++layer) {
    for (int32_t sequence = 0; sequence < shape.sequences; ++sequence) {
      const size_t head = Index({layer, sequence, 0});
      DiffKvLease& lease = leases[static_cast<size_t>(sequence)];
      lease.ids = ids[static_cast<size_t>(sequence)].data();
      rows.push_back(
          {.layer = {.page_table = tables.data() + head * static_cast<size_t>(shape.columns),
                     .token_counts = counts.data() + head * kDiffKvTiers,
                     .columns = shape.columns},
           .sweep = sweeps[rows.size()],
           .lease = &lease,
           .actions = actions.data() + head});
    }
  }
  return rows;
}

int32_t DiffKvStep::PageOf(const DiffKvStepHead& head, int32_t tier, int32_t page) const {
  const DiffKvLayer layer = {.columns = shape.columns};
  return tables[Index(head) * static_cast<size_t>(shape.columns) +
                static_cast<size_t>(DiffKvColumn(layer, tier, page))];
}

std::vector<int32_t> DiffKvStep::CountsOf(const DiffKvStepHead& head) const {
  const auto begin = counts.begin() + static_cast<std::ptrdiff_t>(Index(head) * kDiffKvTiers);
  return {begin, begin + kDiffKvTiers};
}

std::vector<int32_t> DiffKvStep::PagesOfAction(const DiffKvStepHead& head) const {
  const DiffKvAction& action = actions[Index(head)];
  return {action.pages, action.pages + kDiffKvTiers};
}

std::vector<int32_t> DiffKvStep::ZeroPages() const {
  std::vector<int32_t> zeros;
  const auto bytes = static_cast<std::ptrdiff_t>(shape.geometry.page_bytes());
  for (int32_t id = 0; id < next_page_; ++id) {
    const auto begin = pool.begin() + id * bytes;
    const auto all = [&](std::byte value) {
      return std::all_of(begin, begin + bytes, [&](std::byte byte) { return byte == value; });
    };
    if (all(std::byte{0})) {
      zeros.push_back(id);
    } else {
      EXPECT_TRUE(all(kUntouched)) << "page " << id;
    }
  }
  return zeros;
}

void DiffKvStep::ExpectSameState(const DiffKvStep& want, bool with_actions) const {
  EXPECT_EQ(tables, want.tables) << SeedMessage();
  EXPECT_EQ(counts, want.counts) << SeedMessage();
  EXPECT_TRUE(pool == want.pool) << SeedMessage();
  for (size_t i = 0; i < leases.size(); ++i) {
    EXPECT_EQ(leases[i].used, want.leases[i].used) << "sequence " << i << "; " << SeedMessage();
  }
  for (size_t i = 0; with_actions && i < actions.size(); ++i) {
    EXPECT_EQ(actions[i], want.actions[i]) << "head " << i << "; " << SeedMessage();
  }
}

}  // namespace baton::kernels
