// Selection and attention of format `shadowkv` on the device against the reference, over the
// reference's bytes: chosen chunks, logits of clusters, outputs, log-sum-exps, counters and the
// tables of caches.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/shadowkv_params.h"
#include "kernels/reference/reference_ops.h"
#include "tests/gpu/support/gpu_test.h"
#include "tests/gpu/support/shadowkv_rows.h"
#include "tests/kernels/support/backends.h"
#include "tests/kernels/support/shadowkv_joint_problem.h"
#include "tests/kernels/support/shadowkv_problem.h"

namespace baton::kernels::cuda {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();

class ShadowKvDecodeGpuTest : public GpuTest {
 protected:
  // `steps` steps of sequences of these shapes, compared from step `first` on.
  void Compare(std::vector<ShadowKvShape> shapes, int steps, int first = 0) const {
    for (ShadowKvShape& shape : shapes) shape.generated_tokens = steps;
    ShadowKvProblems problems(shapes);
    problems.Append();
    ShadowKvRows rows = problems.MakeRows();
    for (int step = 0; step < steps; ++step) {
      SCOPED_TRACE(testing::Message() << "step " << step);
      if (step > 0) problems.Append();
      rows.Update(problems.Sequences());
      rows.SetQueries(problems.Queries());
      if (step < first) continue;
      const ShadowKvResults want = rows.OnHost();
      ExpectSameResults(rows.OnDevice(ops(), context()), want);
      rows.CheckCaches();
    }
  }
  void Compare(const ShadowKvShape& shape, int steps, int first = 0) const {
    Compare(std::vector<ShadowKvShape>{shape}, steps, first);
  }
};

TEST_F(ShadowKvDecodeGpuTest, EverySelectorAndChunkSizeGivesTheReferencesResults) {
  for (const ShadowKvSelector selector :
       {ShadowKvSelector::kMean, ShadowKvSelector::kBounds, ShadowKvSelector::kQ2}) {
    for (const int32_t chunk : {1, 2, 4, 8}) {
      SCOPED_TRACE(testing::Message() << static_cast<int>(selector) << ", chunks of " << chunk);
      ShadowKvShape shape;
      shape.config.selector = selector;
      shape.config.chunk_tokens = chunk;
      shape.config.outlier_chunks = 3;
      shape.config.sink_chunks = 1;
      shape.config.head_dim = chunk % 4 == 1 ? 128 : 64;
      shape.prompt_tokens = 301;
      Compare(shape, 2);
    }
  }
}

TEST_F(ShadowKvDecodeGpuTest, LandmarksInCodesGiveTheReferencesResults) {
  for (const int64_t group : {1, 2, 4, 7, 9, 16}) {
    for (const int32_t chunk : {1, 2, 4, 8}) {
      SCOPED_TRACE(testing::Message() << "group " << group << ", chunks of " << chunk);
      ShadowKvShape shape;
      shape.config.landmark_bits = 8;
      shape.config.chunk_tokens = chunk;
      shape.config.outlier_chunks = 3;
      shape.config.sink_chunks = 1;
      shape.config.head_dim = chunk % 4 == 1 || group == 4 ? 128 : 64;
      shape.config.kv_heads = 2;
      shape.heads = 2 * group;
      shape.prompt_tokens = 1203;
      Compare(shape, 2);
    }
  }
}

TEST_F(ShadowKvDecodeGpuTest, LandmarksInCodesOfGeneratedBlocksGiveTheReferencesResults) {
  std::vector<ShadowKvShape> shapes(3);
  for (ShadowKvShape& shape : shapes) shape.config.landmark_bits = 8;
  shapes[0].prompt_tokens = 130;
  shapes[1].config.landmark_bits = 16;  // beside each other in one call
  shapes[2].prompt_tokens = 611;
  Compare(shapes, 200, 190);
}

TEST_F(ShadowKvDecodeGpuTest, EveryGroupSizeGivesTheReferencesResults) {
  for (const int64_t group : {1, 2, 3, 4, 7, 8, 9, 16}) {
    for (const int32_t dim : {64, 128}) {
      SCOPED_TRACE(testing::Message() << "group " << group << " of " << dim);
      ShadowKvShape shape;
      shape.config.head_dim = dim;
      shape.config.kv_heads = dim == 64 ? 3 : 1;
      shape.config.selector = group % 2 == 0 ? ShadowKvSelector::kBounds : ShadowKvSelector::kQ2;
      shape.heads = group * shape.config.kv_heads;
      shape.prompt_tokens = 211;
      Compare(shape, 1);
    }
  }
}

TEST_F(ShadowKvDecodeGpuTest, EveryCodeGivesTheReferencesResults) {
  for (const int32_t bits : {2, 4, 8, 16}) {
    for (const int32_t dim : {64, 128}) {
      SCOPED_TRACE(testing::Message() << bits << " bits of " << dim);
      ShadowKvShape shape;
      shape.config.value_bits = bits;
      shape.config.int8_coefficients = bits % 8 == 0;
      shape.config.chunk_tokens = std::min(bits, 8);
      shape.config.outlier_chunks = 2;
      shape.config.head_dim = dim;
      shape.config.kv_heads = dim == 64 ? 2 : 1;
      shape.config.rank = bits == 8 ? 20 : 40;
      shape.key_bias = 1.0f;
      Compare(shape, 3);
    }
  }
}

TEST_F(ShadowKvDecodeGpuTest, RanksOfAnySizeGiveTheReferencesResults) {
  for (const int32_t rank : {1, 7, 16, 33, 64, 128}) {
    for (const bool int8 : {false, true}) {
      SCOPED_TRACE(testing::Message() << "rank " << rank << (int8 ? " of int8" : ""));
      ShadowKvShape shape;
      shape.config.rank = rank;
      shape.config.int8_coefficients = int8;
      shape.prompt_tokens = 250;
      Compare(shape, 1);
    }
  }
}

// Those that are reconstructed chunk by chunk: fewer tiles of chunks than the ring holds and more,
// the last one full or not, with blocks of generated tokens and chunks that are there already.
TEST_F(ShadowKvDecodeGpuTest, ServedShapesGiveTheReferencesResults) {
  for (const int32_t rank : {64, 128, 160}) {
    for (const int32_t budget : {8, 72, 512, 1000}) {
      SCOPED_TRACE(testing::Message() << "rank " << rank << ", a budget of " << budget);
      ShadowKvShape shape;
      shape.config.head_dim = 128;
      shape.config.kv_heads = 2;
      shape.config.rank = rank;
      shape.config.budget_tokens = budget;
      shape.config.outlier_chunks = 2;
      shape.config.value_bits = 4;
      shape.key_bias = rank == 128 ? 1.0f : 0.0f;
      shape.prompt_tokens = 1111;
      ASSERT_EQ(ShadowKvChunkKeyRank(shape.config), rank);
      Compare(shape, budget == 72 ? 140 : 2, budget == 72 ? 137 : 0);
    }
  }
}

// Selected chunks of the shape that is brought whole, behind exact tokens that end anywhere in a
// stage: fewer chunks than a stage has and more, the last stage full or not.
TEST_F(ShadowKvDecodeGpuTest, ChunksThatAreBroughtWholeGiveTheReferencesResults) {
  for (const int32_t dim : {64, 128}) {
    for (const int64_t group : {1, 2, 4, 7, 8, 16}) {
      SCOPED_TRACE(testing::Message() << "group " << group << " of " << dim);
      ShadowKvShape shape;
      shape.config.head_dim = dim;
      shape.config.kv_heads = 1;
      shape.config.rank = group % 2 == 0 ? 64 : 40;
      shape.config.value_bits = 4;
      shape.config.budget_tokens = static_cast<int32_t>(group) * 24;
      shape.config.outlier_chunks = static_cast<int32_t>(group);
      shape.heads = group;
      shape.prompt_tokens = 540 + 3 * group;
      Compare(shape, 2);
    }
  }
}

TEST_F(ShadowKvDecodeGpuTest, GeneratedBlocksGiveTheReferencesResults) {
  for (const ShadowKvSelector selector : {ShadowKvSelector::kMean, ShadowKvSelector::kQ2}) {
    ShadowKvShape shape;
    shape.config.selector = selector;
    shape.config.rank = 24;
    shape.config.value_bits = 4;
    shape.config.outlier_chunks = 2;
    shape.prompt_tokens = 133;
    Compare(shape, 262, 225);
  }
}

TEST_F(ShadowKvDecodeGpuTest, GeneratedTokensThatStayExactGiveTheReferencesResults) {
  ShadowKvShape shape;
  shape.config.generated = ShadowKvGenerated::kExact;
  shape.config.rank = 16;
  shape.prompt_tokens = 133;
  Compare(shape, 330, 326);
}

TEST_F(ShadowKvDecodeGpuTest, ShortPromptsHaveNothingToSelect) {
  for (const int64_t tokens : {1, 31, 39, 40, 41}) {
    SCOPED_TRACE(testing::Message() << tokens << " tokens");
    ShadowKvShape shape;
    shape.config.outlier_chunks = 1;
    shape.prompt_tokens = tokens;
    Compare(shape, 2);
  }
}

TEST_F(ShadowKvDecodeGpuTest, ValueClustersGiveTheReferencesResults) {
  for (const int32_t chunk : {1, 4}) {
    for (const int32_t clusters : {1, 5, 200}) {
      SCOPED_TRACE(testing::Message() << clusters << " clusters, chunks of " << chunk);
      ShadowKvShape shape;
      shape.heads = chunk == 1 ? 6 : 18;
      shape.config.selector = ShadowKvSelector::kQ2;
      shape.config.chunk_tokens = chunk;
      shape.config.outlier_chunks = 2;
      shape.config.value_clusters = clusters;
      shape.config.value_bits = 4;
      Compare(shape, 2);
    }
  }
}

TEST_F(ShadowKvDecodeGpuTest, ClustersOfGeneratedBlocksAndOfNoTokensGiveTheReferencesResults) {
  ShadowKvShape shape;
  shape.config.selector = ShadowKvSelector::kQ2;
  shape.config.rank = 20;
  shape.config.value_clusters = 8;
  shape.prompt_tokens = 130;
  Compare(shape, 230, 226);
  shape.config.budget_tokens = 1024;  // nothing is left to the clusters
  shape.prompt_tokens = 400;
  Compare(shape, 1);
  shape.config.budget_tokens = 0;  // all is
  Compare(shape, 1);
}

TEST_F(ShadowKvDecodeGpuTest, ManySplitsGiveTheReferencesResults) {
  ShadowKvShape shape;
  shape.heads = 2;
  shape.config.kv_heads = 1;
  shape.config.rank = 8;
  shape.config.budget_tokens = 1100;
  shape.config.value_bits = 8;
  shape.prompt_tokens = 2011;
  Compare(shape, 2);
}

TEST_F(ShadowKvDecodeGpuTest, MoreChunksThanSharedMemoryHoldsGiveTheReferencesResults) {
  ShadowKvShape shape;
  shape.heads = 2;
  shape.config.kv_heads = 1;
  shape.config.rank = 8;
  shape.config.chunk_tokens = 1;
  shape.config.budget_tokens = 333;
  shape.config.outlier_chunks = 40;
  shape.config.selector = ShadowKvSelector::kQ2;
  shape.config.value_clusters = 16;
  shape.prompt_tokens = 9000;
  Compare(shape, 1);
}

TEST_F(ShadowKvDecodeGpuTest, EqualChunksAreChosenByTheLowerId) {
  ShadowKvShape shape;
  shape.config.budget_tokens = 40;
  shape.config.outlier_chunks = 1;
  shape.config.sink_chunks = 2;
  shape.generated_tokens = 1;
  shape.key_noise = 0.0f;
  shape.key_rank = 0;
  Compare(shape, 1);
}

TEST_F(ShadowKvDecodeGpuTest, SequencesOfOneCallMayDiffer) {
  std::vector<ShadowKvShape> shapes(5);
  shapes[1].prompt_tokens = 333;
  shapes[1].config.rank = 20;
  shapes[1].config.budget_tokens = 33;
  shapes[1].config.chunk_tokens = 4;
  shapes[1].config.selector = ShadowKvSelector::kQ2;
  shapes[1].config.value_clusters = 7;
  shapes[2].prompt_tokens = 20;
  shapes[3].config.value_bits = 2;
  shapes[3].config.int8_coefficients = true;
  shapes[3].config.outlier_chunks = 4;
  shapes[3].config.selector = ShadowKvSelector::kBounds;
  shapes[4].config.generated = ShadowKvGenerated::kExact;
  shapes[4].config.value_bits = 8;
  shapes[4].config.local_chunks = 0;
  Compare(shapes, 3);
}

// More KV heads than large blocks that choose have room for at once.
TEST_F(ShadowKvDecodeGpuTest, ManySequencesGiveTheReferencesResults) {
  std::vector<ShadowKvShape> shapes(140);
  for (size_t r = 0; r < shapes.size(); ++r) {
    shapes[r].config.rank = 8;
    shapes[r].config.outlier_chunks = 1;
    shapes[r].prompt_tokens = 100 + static_cast<int64_t>(r);
  }
  Compare(shapes, 1);
}

// Keys of any shape, of int8 coefficients, and of the shape that is served.
TEST_F(ShadowKvDecodeGpuTest, TheCacheChangesNoBit) {
  std::vector<ShadowKvShape> shapes(3);
  shapes[0].config.value_bits = 16;
  shapes[1].config.value_bits = 4;
  shapes[1].config.int8_coefficients = true;
  shapes[2].config.value_bits = 4;
  shapes[2].config.head_dim = 128;
  shapes[2].config.rank = 64;
  shapes[2].config.budget_tokens = 200;
  shapes[2].prompt_tokens = 900;
  for (ShadowKvShape& shape : shapes) {
    SCOPED_TRACE(testing::Message() << "rank " << shape.config.rank);
    shape.key_bias = 2.0f;
    shape.generated_tokens = 20;
    ShadowKvProblems problems({shape});
    problems.Append();
    ShadowKvRows rows = problems.MakeRows();
    int64_t hits = 0;
    for (int step = 1; step < 20; ++step) {
      problems.Append();
      rows.Update(problems.Sequences());
      rows.SetQueries(problems.Queries());
      const ShadowKvResults with = rows.OnDevice(ops(), context());
      const ShadowKvResults without = rows.OnDevice(ops(), context(), {}, 0, /*cached=*/false);
      EXPECT_EQ(with.ids, without.ids);
      ExpectSameBits(with.out, without.out);
      EXPECT_EQ(without.counters[0].hits, 1);
      hits += with.counters[0].hits - 1;
    }
    EXPECT_GT(hits, 19);
  }
}

TEST_F(ShadowKvDecodeGpuTest, ARowsBitsDependNeitherOnTheOtherRowsNorOnTheWorkspace) {
  std::vector<ShadowKvShape> shapes(6);
  for (size_t r = 0; r < shapes.size(); ++r) {
    shapes[r].heads = 14;
    shapes[r].config.selector = ShadowKvSelector::kQ2;
    shapes[r].config.value_clusters = 9;
    shapes[r].prompt_tokens = 600 - 90 * static_cast<int64_t>(r);
    shapes[r].generated_tokens = 1;
  }
  ShadowKvProblems problems(shapes);
  problems.Append();
  ShadowKvRows rows = problems.MakeRows();
  rows.SetQueries(problems.Queries());
  const ShadowKvResults alone = rows.OnDevice(ops(), context(), {}, 1, /*cached=*/false);
  const ShadowKvResults all = rows.OnDevice(ops(), context(), {}, 0, /*cached=*/false);
  const size_t elements = rows.row_elements();
  const size_t first = static_cast<size_t>(rows.row(0)) * elements;
  ExpectSameBits(std::span(all.out).subspan(first, elements),
                 std::span(alone.out).subspan(first, elements));
  // So small that a launch takes two of the sequences.
  const absl::StatusOr<std::unique_ptr<DeviceQueue>> small = DeviceQueue::Create(size_t{1} << 20);
  ASSERT_TRUE(small.ok()) << small.status();
  ExecContext few;
  few.queue = small->get();
  const ShadowKvResults again = rows.OnDevice(ops(), few, {}, 0, /*cached=*/false);
  EXPECT_EQ(again.ids, all.ids);
  ExpectSameBits(again.cluster_logits, all.cluster_logits);
  ExpectSameBits(again.out, all.out);
}

TEST_F(ShadowKvDecodeGpuTest, MergesWithAttentionOverOtherKeys) {
  ShadowKvShape shape;
  shape.config.outlier_chunks = 2;
  shape.config.value_bits = 8;
  shape.config.local_chunks = 1;
  shape.generated_tokens = 140;
  ShadowKvProblems problems({shape, shape});
  for (const int64_t generated : {int64_t{0}, int64_t{1}, shape.generated_tokens}) {
    SCOPED_TRACE(testing::Message() << generated << " generated; " << SeedMessage());
    while (problems.Sequences()[0].position + 1 < shape.prompt_tokens + generated) {
      problems.Append();
    }
    std::vector<ShadowKvSequence> sequences = problems.Sequences();
    for (ShadowKvSequence& sequence : sequences) sequence.cache = nullptr;
    ShadowKvRows rows = problems.MakeRows();
    rows.Update(sequences);
    rows.SetQueries(RandomFloats(2 * rows.row_elements()));
    for (const float lse : {kNone, -2.0f, 3.0f, 40.0f}) {
      ShadowKvOthers others;
      others.out = RoundedTo(RandomFloats(2 * rows.row_elements()), DType::kBF16);
      others.lse.assign(static_cast<size_t>(2 * rows.heads()), lse);
      others.lse[1] = kNone;
      const ShadowKvResults want = rows.OnHost(others);
      ExpectSameResults(rows.OnDevice(ops(), context(), others), want);
    }
  }
}

// Nothing is static, exact or selected: results are those of the other keys, or zeros.
TEST_F(ShadowKvDecodeGpuTest, NoTokensLeaveWhatIsThere) {
  ShadowKvShape shape;
  shape.config.local_chunks = 0;
  shape.config.budget_tokens = 0;
  shape.generated_tokens = 1;
  ShadowKvProblems problems({shape});
  std::vector<ShadowKvSequence> sequences = problems.Sequences();
  sequences[0].cache = nullptr;
  ShadowKvRows rows = problems.MakeRows();
  rows.Update(sequences);
  rows.SetQueries(RandomFloats(rows.row_elements()));
  ShadowKvOthers others;
  others.out = RoundedTo(RandomFloats(rows.row_elements()), DType::kBF16);
  others.lse = {1.0f, kNone, -3.0f, 2.0f};
  const ShadowKvResults got = rows.OnDevice(ops(), context(), others);
  const ShadowKvResults want = rows.OnHost(others);
  ExpectSameResults(got, want);
}

TEST_F(ShadowKvDecodeGpuTest, JointCoefficientsGiveTheReferencesResults) {
  for (const bool int8 : {false, true}) {
    ShadowKvShape shape;
    shape.heads = 8;
    shape.config.kv_heads = 4;
    shape.config.rank = 40;
    shape.config.int8_coefficients = int8;
    shape.prompt_tokens = 140;
    shape.generated_tokens = 170;
    const ShadowKvContext context_of_wide(ReferenceOps(), 1, shape);
    ShadowKvProblem wide(ReferenceOps(), *context_of_wide, shape);
    ShadowKvJointProblem joint(ReferenceOps(), wide, 2);
    const auto sequences = [&] {
      return std::vector<ShadowKvSequence>{joint.Sequence(0), joint.Sequence(1)};
    };
    wide.Append(ReferenceOps(), *context_of_wide);
    joint.Append();
    ShadowKvRows rows(sequences(), shape.heads / 2, wide.rope(), nullptr);
    for (int step = 1; step < shape.generated_tokens; ++step) {
      wide.Append(ReferenceOps(), *context_of_wide);
      joint.Append();
      if (step > 2 && step < shape.generated_tokens - 2) continue;
      SCOPED_TRACE(testing::Message() << "step " << step);
      rows.Update(sequences());
      rows.SetQueries({wide.query(), 2 * rows.row_elements()});
      const ShadowKvResults want = rows.OnHost();
      ExpectSameResults(rows.OnDevice(ops(), context(), {}), want);
      rows.CheckCaches();
    }
  }
}

TEST_F(ShadowKvDecodeGpuTest, WhatTheDeviceCannotKnowIsAskedFor) {
  const DeviceArray<uint16_t> activations(std::vector<uint16_t>(1024));
  const DeviceArray<float> angles(std::vector<float>(1024));
  const DeviceArray<ShadowKvSequence> sequence(std::vector<ShadowKvSequence>(1));
  const DeviceArray<int32_t> ids(std::vector<int32_t>(64));
  const ShadowKvBounds bounds = {
      .kv_heads = 2, .head_dim = 64, .max_chunks = 8, .max_budget_tokens = 64};
  const auto select = [&](const ShadowKvBounds& known, const ExecContext& on) {
    return ops()
        .shadowkv_select(on,
                         {.q = activations.data(),
                          .q_stride = 256,
                          .sequences = sequence.data(),
                          .num_sequences = 1,
                          .heads = 4,
                          .scale = 1.0f,
                          .chunk_ids = ids.data(),
                          .chunk_ids_stride = 8,
                          .bounds = known})
        .code();
  };
  const auto attend = [&](const ShadowKvBounds& known, const ExecContext& on) {
    return ops()
        .shadowkv_attention(
            on,
            {.q = activations.data(),
             .q_stride = 256,
             .sequences = sequence.data(),
             .num_sequences = 1,
             .heads = 4,
             .scale = 1.0f,
             .chunk_ids = ids.data(),
             .chunk_ids_stride = 8,
             .rope = {.cosines = angles.data(), .sines = angles.data(), .positions = 8},
             .out = activations.data(),
             .out_stride = 256,
             .bounds = known})
        .code();
  };
  std::vector<ShadowKvBounds> wrong(4, bounds);
  wrong[0].kv_heads = 0;
  wrong[1].head_dim = 0;
  wrong[2].kv_heads = 3;
  wrong[3].max_chunks = wrong[3].max_budget_tokens = 0;
  for (const ShadowKvBounds& known : wrong) {
    EXPECT_EQ(select(known, context()), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(attend(known, context()), absl::StatusCode::kInvalidArgument);
  }
  for (const int32_t rank : {64, 96}) {
    ShadowKvBounds by_chunks = bounds;  // heads of 64 are none of these keys
    by_chunks.chunk_key_rank = rank;
    EXPECT_EQ(attend(by_chunks, context()), absl::StatusCode::kInvalidArgument);
  }
  std::vector<ShadowKvBounds> unsupported(2, bounds);
  unsupported[0].dtype = DType::kF32;
  unsupported[1].head_dim = 32;
  for (const ShadowKvBounds& known : unsupported) {
    EXPECT_EQ(select(known, context()), absl::StatusCode::kUnimplemented);
    EXPECT_EQ(attend(known, context()), absl::StatusCode::kUnimplemented);
  }
  const absl::StatusOr<std::unique_ptr<DeviceQueue>> small = DeviceQueue::Create(64);
  ASSERT_TRUE(small.ok()) << small.status();
  ExecContext tiny;
  tiny.queue = small->get();
  EXPECT_EQ(select(bounds, tiny), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(attend(bounds, tiny), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(ops().shadowkv_select(context(), {}).ok()) << "no sequences are nothing to do";
  EXPECT_TRUE(ops().shadowkv_attention(context(), {}).ok());
}

TEST_F(ShadowKvDecodeGpuTest, TheWorkspaceForSomeSequencesIsEnoughForThem) {
  ShadowKvShape shape;
  shape.config.selector = ShadowKvSelector::kQ2;
  shape.config.value_clusters = 5;
  shape.generated_tokens = 1;
  const size_t bytes = ops().shadowkv_workspace_bytes(
      1, {.config = shape.config, .heads = shape.heads, .max_tokens = shape.prompt_tokens + 1});
  const absl::StatusOr<std::unique_ptr<DeviceQueue>> queue = DeviceQueue::Create(bytes);
  ASSERT_TRUE(queue.ok()) << queue.status();
  ExecContext exact;
  exact.queue = queue->get();
  ShadowKvProblems problems({shape, shape});
  problems.Append();
  ShadowKvRows rows = problems.MakeRows();
  rows.SetQueries(problems.Queries());
  const ShadowKvResults want = rows.OnHost();
  ExpectSameResults(rows.OnDevice(ops(), exact), want);
}

}  // namespace
}  // namespace baton::kernels::cuda
