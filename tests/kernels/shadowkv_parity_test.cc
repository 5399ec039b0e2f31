// The CPU back ends against the reference on the same bytes: chosen chunks, attention, counters.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/core/dtype.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/op_table.h"
#include "kernels/ops/shadowkv_params.h"
#include "kernels/reference/reference_ops.h"
#include "tests/kernels/support/backends.h"
#include "tests/kernels/support/shadowkv_problem.h"

namespace baton::kernels {
namespace {

// e^logit: 0 for a cluster without tokens.
std::vector<float> Weights(std::vector<float> logits) {
  std::transform(logits.begin(), logits.end(), logits.begin(), [](float x) { return std::exp(x); });
  return logits;
}

class ShadowKvParityTest : public BackendTest {
 protected:
  // Steps both back ends over the reference's bytes.
  void Check(ShadowKvShape shape, int steps) const {
    shape.generated_tokens = steps;
    const OpTable& reference = ReferenceOps();
    const ShadowKvContext context(ops(), 2, shape);
    const ShadowKvContext plain(reference, 1, shape);
    ShadowKvProblem want(reference, *plain, shape);
    ShadowKvProblem got(ops(), *context, shape);
    for (int step = 0; step < steps; ++step) {
      SCOPED_TRACE(testing::Message() << "step " << step);
      const ShadowKvStep expected = want.Step(reference, *plain);
      got.TakeBytes(want);
      const std::vector<int32_t> ids = got.Select(ops(), *context);
      ASSERT_EQ(ids, expected.chunk_ids) << SeedMessage();
      ExpectNear(Weights(got.cluster_logits()), Weights(want.cluster_logits()), 1e-4);
      ShadowKvCounters counters;
      const std::vector<float> out = got.Attend(ops(), *context, ids, &counters);
      // A reconstructed bf16 key may round the other way.
      ExpectNear(out, expected.out, shape.config.dtype == DType::kF32 ? 2e-5 : 4e-3);
      EXPECT_EQ(counters.hits, expected.counters.hits);
      EXPECT_EQ(counters.misses, expected.counters.misses);
      EXPECT_EQ(counters.attended_tokens, expected.counters.attended_tokens);
    }
  }
};

TEST_P(ShadowKvParityTest, EverySelectorAndDType) {
  for (const ShadowKvSelector selector :
       {ShadowKvSelector::kMean, ShadowKvSelector::kBounds, ShadowKvSelector::kQ2}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      ShadowKvShape shape;
      shape.config.selector = selector;
      shape.config.dtype = dtype;
      shape.config.outlier_chunks = 2;
      Check(shape, 5);
    }
  }
}

TEST_P(ShadowKvParityTest, EveryCode) {
  for (const int32_t bits : {2, 4, 8}) {
    ShadowKvShape shape;
    shape.config.value_bits = bits;
    shape.config.int8_coefficients = bits == 4;
    shape.config.chunk_tokens = bits;
    shape.key_bias = 1.0f;
    Check(shape, 4);
  }
}

TEST_P(ShadowKvParityTest, LandmarksInCodes) {
  for (const int64_t group : {1, 3, 7}) {
    for (const int32_t dim : {8, 64, 72, 128}) {
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        ShadowKvShape shape;
        shape.config.landmark_bits = 8;
        shape.config.dtype = dtype;
        shape.config.generated = ShadowKvGenerated::kBlocks;
        shape.config.kv_heads = 2;
        shape.heads = 2 * group;
        shape.config.head_dim = dim;
        shape.config.rank = 8;
        shape.config.outlier_chunks = 2;
        shape.prompt_tokens = 211;
        Check(shape, 3);
      }
    }
  }
}

TEST_P(ShadowKvParityTest, GroupsAndHeadDims) {
  for (const int64_t group : {1, 3, 7, 9}) {
    for (const int32_t dim : {8, 64, 72, 128}) {
      ShadowKvShape shape;
      shape.config.kv_heads = dim > 64 ? 1 : 2;
      shape.heads = shape.config.kv_heads * group;
      shape.config.head_dim = dim;
      shape.config.rank = 8;
      shape.prompt_tokens = 211;
      Check(shape, 2);
    }
  }
}

TEST_P(ShadowKvParityTest, AcrossBlockBorders) {
  ShadowKvShape shape;
  shape.config.generated = ShadowKvGenerated::kBlocks;
  shape.config.rank = 20;
  shape.prompt_tokens = 130;
  Check(shape, 230);
}

TEST_P(ShadowKvParityTest, ValueClusters) {
  for (const int32_t chunk : {1, 4}) {
    for (const int32_t clusters : {1, 5, 32}) {
      ShadowKvShape shape;
      shape.heads = 6;
      shape.config.selector = ShadowKvSelector::kQ2;
      shape.config.chunk_tokens = chunk;
      shape.config.outlier_chunks = 2;
      shape.config.value_clusters = clusters;
      shape.config.value_bits = 4;
      shape.config.dtype = clusters == 5 ? DType::kF32 : DType::kBF16;
      Check(shape, 4);
    }
  }
}

TEST_P(ShadowKvParityTest, ValueClustersOfGeneratedBlocks) {
  ShadowKvShape shape;
  shape.config.selector = ShadowKvSelector::kQ2;
  shape.config.rank = 20;
  shape.config.value_clusters = 8;
  shape.prompt_tokens = 130;
  Check(shape, 230);
}

TEST_P(ShadowKvParityTest, RanksPastADepthBlock) {
  ShadowKvShape shape;
  shape.heads = 5;
  shape.config.kv_heads = 5;
  shape.config.rank = 300;
  shape.config.dtype = DType::kF32;
  shape.prompt_tokens = 120;
  // The reference's eigensolver would take seconds here: its steps run on the other's bytes.
  shape.generated_tokens = 2;
  const ShadowKvContext context(ops(), 2, shape);
  const ShadowKvContext plain(ReferenceOps(), 1, shape);
  ShadowKvProblem problem(ops(), *context, shape);
  for (int step = 0; step < 2; ++step) {
    const ShadowKvStep got = problem.Step(ops(), *context);
    EXPECT_EQ(problem.Select(ReferenceOps(), *plain), got.chunk_ids);
    problem.DropCache();
    ExpectNear(got.out, problem.Attend(ReferenceOps(), *plain, got.chunk_ids), 2e-5);
  }
}

TEST_P(ShadowKvParityTest, EqualChunksAreChosenByTheLowerId) {
  ShadowKvShape shape;
  shape.config.budget_tokens = 40;
  shape.generated_tokens = 1;
  // Keys of zero: every landmark is the same.
  shape.key_noise = 0.0f;
  shape.key_rank = 0;
  const ShadowKvContext context(ops(), 2, shape);
  ShadowKvProblem problem(ops(), *context, shape);
  const std::vector<int32_t> want = {0, 1, 2, 3, 4, 0, 1, 2, 3, 4};
  EXPECT_EQ(problem.Step(ops(), *context).chunk_ids, want);
  const ShadowKvContext plain(ReferenceOps(), 1, shape);
  EXPECT_EQ(problem.Select(ReferenceOps(), *plain), want);
}

INSTANTIATE_TEST_SUITE_P(Backends,
                         ShadowKvParityTest,
                         testing::ValuesIn(kCpuBackends),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace baton::kernels
