// Attention that reads values of selected tokens from memory of the host: the bits of values in
// the device's own.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "kernels/kv_format/shadowkv.h"
#include "tests/gpu/support/gpu_test.h"
#include "tests/gpu/support/shadowkv_rows.h"
#include "tests/kernels/support/backends.h"
#include "tests/kernels/support/shadowkv_problem.h"

namespace baton::kernels::cuda {
namespace {

constexpr int kSteps = 20;

// Sequences of these shapes side by side, with values in their place and apart.
class Twins {
 public:
  explicit Twins(const std::vector<ShadowKvShape>& shapes)
      : together_(WithValues(shapes, /*apart=*/false)),
        apart_(WithValues(shapes, /*apart=*/true)),
        together_rows_(First(together_)),
        apart_rows_(First(apart_)) {}

  void Append() {
    for (auto [problems, rows] :
         {std::pair(&together_, &together_rows_), std::pair(&apart_, &apart_rows_)}) {
      problems->Append();
      rows->Update(problems->Sequences());
      rows->SetQueries(problems->Queries());
    }
  }

  const ShadowKvRows& together() const { return together_rows_; }
  const ShadowKvRows& apart() const { return apart_rows_; }

 private:
  static std::vector<ShadowKvShape> WithValues(std::vector<ShadowKvShape> shapes, bool apart) {
    for (ShadowKvShape& shape : shapes) {
      shape.config.values_apart = apart;
      shape.generated_tokens = kSteps;
    }
    return shapes;
  }
  static ShadowKvRows First(ShadowKvProblems& problems) {
    problems.Append();
    return problems.MakeRows();
  }

  ShadowKvProblems together_;
  ShadowKvProblems apart_;
  ShadowKvRows together_rows_;
  ShadowKvRows apart_rows_;
};

class ShadowKvValuesApartGpuTest : public GpuTest {
 protected:
  // Steps with caches, which the values of misses come to, and without, where attention reads them
  // where they lie.
  void Compare(const std::vector<ShadowKvShape>& shapes) const {
    for (const bool cached : {true, false}) {
      SCOPED_TRACE(cached ? "with caches" : "without caches");
      Twins twins(shapes);
      for (int step = 1; step < kSteps; ++step) {
        SCOPED_TRACE(absl::StrCat("step ", step));
        twins.Append();
        const ShadowKvResults want = twins.together().OnDevice(ops(), context(), {}, 0, cached);
        const ShadowKvResults got = twins.apart().OnDevice(ops(), context(), {}, 0, cached);
        ASSERT_EQ(got.ids, want.ids) << SeedMessage();
        ExpectSameBits(got.out, want.out);
        for (size_t r = 0; r < want.counters.size(); ++r) {
          EXPECT_EQ(got.counters[r].hits, want.counters[r].hits);
        }
      }
      if (cached) {
        EXPECT_GT(twins.apart().OnDevice(ops(), context()).counters[0].hits, 1);
      }
    }
  }
};

// Keys by chunks beside the copies of values, whole chunks in attention, and many of them.
TEST_F(ShadowKvValuesApartGpuTest, ServedShapesGiveTheBitsOfValuesOnTheDevice) {
  for (const int32_t rank : {64, 160}) {
    for (const int32_t bits : {4, 16}) {
      SCOPED_TRACE(absl::StrCat("rank ", rank, ", ", bits, " bits"));
      ShadowKvShape shape;
      shape.heads = 8;
      shape.config.head_dim = 128;
      shape.config.rank = rank;
      shape.config.budget_tokens = 400;
      shape.config.outlier_chunks = 4;
      shape.config.value_bits = bits;
      shape.prompt_tokens = 1200;
      Compare({shape, shape, shape});
    }
  }
}

TEST_F(ShadowKvValuesApartGpuTest, EveryCodeAndChunkSizeGivesTheBitsOfValuesOnTheDevice) {
  for (const int32_t bits : {2, 4, 8, 16}) {
    for (const int32_t chunk : {1, 2, 4, 8}) {
      SCOPED_TRACE(absl::StrCat(bits, " bits, chunks of ", chunk));
      ShadowKvShape shape;
      shape.config.value_bits = bits;
      shape.config.chunk_tokens = chunk;
      Compare({shape});
    }
  }
}

// Some have values apart, some selected nothing before, and blocks of the tail have been coded.
TEST_F(ShadowKvValuesApartGpuTest, GeneratedBlocksAndOtherSequencesGiveTheReferencesResults) {
  std::vector<ShadowKvShape> shapes(3);
  for (ShadowKvShape& shape : shapes) {
    shape.config.value_bits = 4;
    shape.generated_tokens = 140;
  }
  shapes[0].config.values_apart = true;
  shapes[2].config.values_apart = true;
  shapes[2].config.selector = ShadowKvSelector::kQ2;
  shapes[2].config.value_clusters = 9;
  shapes[2].prompt_tokens = 300;
  ShadowKvProblems problems(shapes);
  problems.Append();
  ShadowKvRows rows = problems.MakeRows();
  for (int step = 1; step < 140; ++step) {
    problems.Append();
    if (step < 120) continue;
    SCOPED_TRACE(absl::StrCat("step ", step));
    rows.Update(problems.Sequences());
    rows.SetQueries(problems.Queries());
    const ShadowKvResults want = rows.OnHost();
    ExpectSameResults(rows.OnDevice(ops(), context()), want);
    rows.CheckCaches();
  }
}

}  // namespace
}  // namespace baton::kernels::cuda
