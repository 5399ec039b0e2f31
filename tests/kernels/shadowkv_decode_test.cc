// Decoding from format `shadowkv`: each source of error alone, long generations and the cache.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "absl/status/status.h"

#include "kernels/core/buffer.h"
#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/thread_pool.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/shadowkv_params.h"
#include "tests/kernels/support/backends.h"
#include "tests/kernels/support/shadowkv_problem.h"

namespace baton::kernels {
namespace {

// Every coded chunk fits the budget.
ShadowKvShape SelectAll(ShadowKvShape shape) {
  shape.config.budget_tokens = static_cast<int32_t>(shape.prompt_tokens + shape.generated_tokens);
  return shape;
}

// Attention of the newest query over chosen positions of exact keys and values, in fp64.
std::vector<float> AttendPositions(const ShadowKvProblem& problem,
                                   const std::vector<std::vector<int64_t>>& positions) {
  const ShadowKvConfig& config = problem.shape().config;
  const int64_t dim = config.head_dim;
  const int64_t group = problem.shape().heads / config.kv_heads;
  std::vector<float> out;
  for (int64_t head = 0; head < problem.shape().heads; ++head) {
    const float* q = problem.query() + head * dim;
    const int64_t column = head / group * dim;
    std::vector<double> sums(static_cast<size_t>(dim));
    double total = 0.0;
    for (const int64_t position : positions[static_cast<size_t>(head / group)]) {
      const float* key = problem.key(position) + column;
      const double dot = std::inner_product(q, q + dim, key, 0.0);
      const double weight = std::exp(dot / std::sqrt(static_cast<double>(dim)));
      total += weight;
      for (int64_t i = 0; i < dim; ++i) {
        sums[static_cast<size_t>(i)] += weight * double{problem.value(position)[column + i]};
      }
    }
    for (const double sum : sums) {
      out.push_back(static_cast<float>(sum / total));
    }
  }
  return out;
}

// What each KV head attends: static, selected, exact.
std::vector<std::vector<int64_t>> AttendedPositions(const ShadowKvProblem& problem,
                                                    const std::vector<int32_t>& chunk_ids) {
  const ShadowKvConfig& config = problem.shape().config;
  const ShadowKvPromptLayout& layout = problem.layout();
  const auto* static_ids = reinterpret_cast<const int32_t*>(problem.prompt() + layout.static_ids);
  std::vector<std::vector<int64_t>> positions(static_cast<size_t>(config.kv_heads));
  for (int64_t head = 0; head < config.kv_heads; ++head) {
    std::vector<int64_t> chunks;
    chunks.insert(chunks.end(),
                  static_ids + head * layout.static_chunks,
                  static_ids + (head + 1) * layout.static_chunks);
    const int32_t* ids = chunk_ids.data() + head * config.budget_chunks();
    chunks.insert(chunks.end(), ids, std::find(ids, ids + config.budget_chunks(), -1));
    std::vector<int64_t>& own = positions[static_cast<size_t>(head)];
    for (const int64_t chunk : chunks) {
      for (int64_t t = 0; t < config.chunk_tokens; ++t) {
        own.push_back(chunk * config.chunk_tokens + t);
      }
    }
    for (int64_t t = problem.tail_layout().CodedTokensAt(problem.tokens()); t < problem.tokens();
         ++t) {
      own.push_back(t);
    }
  }
  return positions;
}

double RelativeDistance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0.0;
  double energy = 0.0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += (double{a[i]} - double{b[i]}) * (double{a[i]} - double{b[i]});
    energy += double{b[i]} * double{b[i]};
  }
  return std::sqrt(difference / energy);
}

class ShadowKvDecodeTest : public BackendTest {
 protected:
  // `steps` steps of a lossless configuration that selects everything, against dense attention.
  void CheckLossless(ShadowKvShape shape, int steps) const {
    shape.config = LosslessConfig(shape.config);
    shape.generated_tokens = steps;
    shape = SelectAll(shape);
    const ShadowKvContext context(ops(), 2, shape);
    ShadowKvProblem problem(ops(), *context, shape);
    for (int step = 0; step < steps; ++step) {
      SCOPED_TRACE(testing::Message() << "step " << step);
      const ShadowKvStep result = problem.Step(ops(), *context);
      ExpectNear(result.out, problem.AttendDense(ops(), *context), 2e-5);
      EXPECT_EQ(result.counters.attended_tokens, problem.tokens() * shape.config.kv_heads);
    }
  }
};

TEST_P(ShadowKvDecodeTest, FullRankAndAllChunksGiveDenseAttention) {
  CheckLossless(ShadowKvShape(), 3);
}

TEST_P(ShadowKvDecodeTest, FullRankOfOddShapesGivesDenseAttention) {
  for (const int64_t heads : {1, 7}) {
    ShadowKvShape shape;
    shape.heads = heads;
    shape.config.kv_heads = 1;
    shape.config.outlier_chunks = 3;
    shape.config.sink_chunks = 1;
    shape.prompt_tokens = 203;
    CheckLossless(shape, 2);
  }
  ShadowKvShape wide;
  wide.config.head_dim = 128;
  wide.config.kv_heads = 1;
  wide.prompt_tokens = 150;
  CheckLossless(wide, 2);
  ShadowKvShape narrow;
  narrow.config.head_dim = 24;
  narrow.config.kv_heads = 2;
  narrow.prompt_tokens = 90;
  CheckLossless(narrow, 2);
}

TEST_P(ShadowKvDecodeTest, EveryPromptRemainderAndChunkSizeGivesDenseAttention) {
  for (const int32_t chunk : {1, 2, 4, 8}) {
    for (int64_t rest = 0; rest < 8; ++rest) {
      ShadowKvShape shape;
      shape.config.chunk_tokens = chunk;
      shape.config.head_dim = 16;
      shape.config.outlier_chunks = 2;
      shape.prompt_tokens = 128 + rest;
      CheckLossless(shape, 1);
    }
  }
}

TEST_P(ShadowKvDecodeTest, ShortPromptsHaveNothingCoded) {
  for (const int64_t tokens : {1, 31, 32, 39, 40, 41}) {
    ShadowKvShape shape;
    shape.config.head_dim = 16;
    shape.config.outlier_chunks = 1;
    shape.prompt_tokens = tokens;
    CheckLossless(shape, 2);
  }
}

TEST_P(ShadowKvDecodeTest, LongGenerationCodesBlocksWithoutLosingATokenInBothModes) {
  for (const ShadowKvGenerated generated :
       {ShadowKvGenerated::kBlocks, ShadowKvGenerated::kExact}) {
    ShadowKvShape shape;
    shape.config.head_dim = 16;
    shape.config.generated = generated;
    shape.config.outlier_chunks = 2;
    shape.prompt_tokens = 77;
    CheckLossless(shape, 400);
  }
}

TEST_P(ShadowKvDecodeTest, ABlockLeavesEarlierBytesOfTheTailAlone) {
  ShadowKvShape shape;
  shape.generated_tokens = 300;
  shape.prompt_tokens = 100;
  const ShadowKvContext context(ops(), 1, shape);
  ShadowKvProblem problem(ops(), *context, shape);
  const ShadowKvTailLayout tail = problem.tail_layout();
  std::vector<std::byte> before;
  while (problem.tokens() < 400) {
    const int64_t blocks = tail.BlocksAt(problem.tokens());
    before.assign(problem.tail_bytes().begin() + static_cast<int64_t>(tail.blocks),
                  problem.tail_bytes().end());
    problem.Append(ops(), *context);
    const bool due = tail.BlockDueAt(problem.tokens() - 1).has_value();
    const auto begin = problem.tail_bytes().begin() + static_cast<int64_t>(tail.blocks);
    const auto kept = static_cast<int64_t>(static_cast<size_t>(blocks) * tail.block.bytes);
    EXPECT_TRUE(std::equal(before.begin(), before.begin() + kept, begin));
    EXPECT_EQ(std::equal(before.begin(), before.end(), begin), !due);
  }
}

// A call ends with a token that makes a block due, and has at most 64.
TEST_P(ShadowKvDecodeTest, ACallAppendsManyTokensLikeManyCalls) {
  for (const ShadowKvGenerated generated :
       {ShadowKvGenerated::kBlocks, ShadowKvGenerated::kExact}) {
    ShadowKvShape shape;
    shape.config.generated = generated;
    shape.prompt_tokens = 133;
    shape.generated_tokens = 333;
    const ShadowKvContext context(ops(), 2, shape);
    ShadowKvProblem one(ops(), *context, shape);
    const ShadowKvProblem many(ops(), *context, shape);
    const ShadowKvTailLayout tail = many.tail_layout();
    const int64_t end = shape.prompt_tokens + shape.generated_tokens;
    for (int64_t first = shape.prompt_tokens; first < end;) {
      const int64_t next = tail.EndOfAppend(first, end);
      std::vector<ShadowKvSequence> sequences(static_cast<size_t>(next - first), many.Sequence());
      for (int64_t position = first; position < next; ++position) {
        sequences[static_cast<size_t>(position - first)].position = static_cast<int32_t>(position);
        sequences[static_cast<size_t>(position - first)].row =
            static_cast<int32_t>(position - first);
      }
      ASSERT_TRUE(ops()
                      .shadowkv_append(*context,
                                       {.k = many.key(first),
                                        .k_stride = shape.config.width(),
                                        .v = many.value(first),
                                        .v_stride = shape.config.width(),
                                        .sequences = sequences.data(),
                                        .num_sequences = static_cast<int64_t>(sequences.size()),
                                        .rope = many.rope(),
                                        .key_bias = many.key_bias()})
                      .ok());
      for (; first < next; ++first) {
        one.Append(ops(), *context);
      }
      ASSERT_TRUE(std::ranges::equal(many.tail_bytes(), one.tail_bytes())) << "token " << first;
    }
  }
}

TEST_P(ShadowKvDecodeTest, LowRankAloneErrsByWhatTheRankLeavesOut) {
  double previous = 2.0;
  for (const int32_t rank : {8, 20, 64}) {
    ShadowKvShape shape;
    shape.config.rank = rank;
    shape.config.dtype = DType::kF32;
    shape.key_rank = 24;
    shape.generated_tokens = 1;
    shape = SelectAll(shape);
    const ShadowKvContext context(ops(), 1, shape);
    ShadowKvProblem problem(ops(), *context, shape);
    const ShadowKvStep step = problem.Step(ops(), *context);
    const double error = RelativeDistance(step.out, problem.AttendDense(ops(), *context));
    EXPECT_LT(error, previous) << "rank " << rank;
    previous = error;
  }
  EXPECT_LT(previous, 0.08);
}

TEST_P(ShadowKvDecodeTest, SelectionAloneAttendsExactlyTheChosenPositions) {
  for (const ShadowKvSelector selector :
       {ShadowKvSelector::kMean, ShadowKvSelector::kBounds, ShadowKvSelector::kQ2}) {
    ShadowKvShape shape;
    shape.config = LosslessConfig(shape.config);
    shape.config.selector = selector;
    shape.config.outlier_chunks = 2;
    shape.config.sink_chunks = 1;
    shape.generated_tokens = 180;
    const ShadowKvContext context(ops(), 2, shape);
    ShadowKvProblem problem(ops(), *context, shape);
    for (int step = 0; step < 180; ++step) {
      const ShadowKvStep result = problem.Step(ops(), *context);
      const std::vector<std::vector<int64_t>> positions =
          AttendedPositions(problem, result.chunk_ids);
      ExpectNear(result.out, AttendPositions(problem, positions), 2e-5);
      int64_t attended = 0;
      for (const std::vector<int64_t>& own : positions) {
        attended += static_cast<int64_t>(own.size());
      }
      EXPECT_EQ(result.counters.attended_tokens, attended);
      EXPECT_EQ(result.counters.hits + result.counters.misses,
                shape.config.budget_chunks() * shape.config.kv_heads);
    }
  }
}

TEST_P(ShadowKvDecodeTest, StaticChunksAreNeverSelected) {
  ShadowKvShape shape;
  shape.config.outlier_chunks = 5;
  shape.config.sink_chunks = 2;
  shape.generated_tokens = 20;
  const ShadowKvContext context(ops(), 1, shape);
  ShadowKvProblem problem(ops(), *context, shape);
  for (int step = 0; step < 20; ++step) {
    const ShadowKvStep result = problem.Step(ops(), *context);
    for (std::vector<int64_t> own : AttendedPositions(problem, result.chunk_ids)) {
      std::sort(own.begin(), own.end());
      EXPECT_EQ(std::adjacent_find(own.begin(), own.end()), own.end());
    }
  }
}

// Keys of zero: every token has the same weight, so a budget of 8 tokens sees next to nothing.
TEST_P(ShadowKvDecodeTest, ClustersKeepWhatTokensThatAreNotSelectedWouldHaveAdded) {
  ShadowKvShape shape;
  shape.config = LosslessConfig(shape.config);
  shape.config.selector = ShadowKvSelector::kQ2;
  shape.config.chunk_tokens = 1;
  shape.config.budget_tokens = 8;
  shape.generated_tokens = 3;
  shape.key_noise = 0.0f;
  shape.key_rank = 0;
  shape.value_kinds = 6;
  for (const int32_t clusters : {0, 64}) {
    shape.config.value_clusters = clusters;
    const ShadowKvContext context(ops(), 2, shape);
    ShadowKvProblem problem(ops(), *context, shape);
    for (int step = 0; step < 3; ++step) {
      const ShadowKvStep result = problem.Step(ops(), *context);
      const std::vector<float> dense = problem.AttendDense(ops(), *context);
      if (clusters > 0) {
        ExpectNear(result.out, dense, 1e-4);
        EXPECT_EQ(result.counters.attended_tokens, 2 * (8 + 64 + 4 + step + 1));
      } else {
        EXPECT_GT(RelativeDistance(result.out, dense), 0.1) << SeedMessage();
      }
    }
  }
}

TEST_P(ShadowKvDecodeTest, SelectedAndStaticTokensAreInNoCluster) {
  ShadowKvShape shape;
  shape.config.selector = ShadowKvSelector::kQ2;
  shape.config.chunk_tokens = 2;
  shape.config.outlier_chunks = 3;
  shape.config.value_clusters = 16;
  shape.generated_tokens = 1;
  shape = SelectAll(shape);
  const ShadowKvContext context(ops(), 2, shape);
  ShadowKvProblem problem(ops(), *context, shape);
  problem.Step(ops(), *context);
  for (const float logit : problem.cluster_logits()) {
    EXPECT_EQ(logit, -INFINITY);
  }
}

TEST_P(ShadowKvDecodeTest, TheCacheChangesNoBit) {
  for (const int32_t bits : {16, 4}) {
    for (const bool int8 : {false, true}) {
      ShadowKvShape shape;
      shape.config.value_bits = bits;
      shape.config.int8_coefficients = int8;
      shape.key_bias = 2.0f;
      shape.generated_tokens = 150;
      const ShadowKvContext context(ops(), 2, shape);
      ShadowKvProblem with(ops(), *context, shape);
      ShadowKvProblem without(ops(), *context, shape);
      without.DropCache();
      int64_t hits = 0;
      for (int step = 0; step < 150; ++step) {
        const ShadowKvStep a = with.Step(ops(), *context);
        const ShadowKvStep b = without.Step(ops(), *context);
        EXPECT_EQ(a.chunk_ids, b.chunk_ids);
        ExpectSameBits(a.out, b.out);
        EXPECT_EQ(b.counters.hits, 0);
        EXPECT_EQ(a.counters.attended_tokens, b.counters.attended_tokens);
        hits += a.counters.hits;
      }
      EXPECT_GT(hits, 150);
    }
  }
}

TEST_P(ShadowKvDecodeTest, WiderValueCodesComeCloserToExactValues) {
  double previous = 2.0;
  for (const int32_t bits : {2, 4, 8}) {
    ShadowKvShape shape;
    shape.config = LosslessConfig(shape.config);
    shape.config.value_bits = bits;
    shape.generated_tokens = 120;
    shape = SelectAll(shape);
    const ShadowKvContext context(ops(), 1, shape);
    ShadowKvProblem problem(ops(), *context, shape);
    ShadowKvStep step;
    for (int i = 0; i < 120; ++i) {
      step = problem.Step(ops(), *context);
    }
    const double error = RelativeDistance(step.out, problem.AttendDense(ops(), *context));
    EXPECT_LT(error, previous / 3.0) << bits << " bits";
    previous = error;
  }
  EXPECT_LT(previous, 0.01);
}

TEST_P(ShadowKvDecodeTest, Int8CoefficientsAddLittleToTheErrorOfTheRank) {
  double errors[2];
  for (const bool int8 : {false, true}) {
    ShadowKvShape shape;
    shape.config.dtype = DType::kF32;
    shape.config.int8_coefficients = int8;
    shape.generated_tokens = 120;
    shape = SelectAll(shape);
    const ShadowKvContext context(ops(), 1, shape);
    ShadowKvProblem problem(ops(), *context, shape);
    ShadowKvStep step;
    for (int i = 0; i < 120; ++i) {
      step = problem.Step(ops(), *context);
    }
    errors[int8 ? 1 : 0] = RelativeDistance(step.out, problem.AttendDense(ops(), *context));
  }
  EXPECT_LT(errors[1], 1.3 * errors[0] + 1e-3);
  EXPECT_NE(errors[1], errors[0]);
}

TEST_P(ShadowKvDecodeTest, BatchesAndThreadsChangeNoBit) {
  ShadowKvShape shape;
  shape.generated_tokens = 140;
  shape.config.value_bits = 8;
  ShadowKvShape other = shape;
  other.prompt_tokens = 333;
  other.config.rank = 20;
  other.config.budget_tokens = 33;
  other.config.chunk_tokens = 4;
  other.config.selector = ShadowKvSelector::kQ2;
  const ShadowKvContext one(ops(), 1, shape);
  const ShadowKvContext two(ops(), 2, shape);
  ShadowKvProblem a(ops(), *one, shape);
  ShadowKvProblem b(ops(), *one, other);
  const int64_t row = shape.heads * shape.config.head_dim;
  for (int step = 0; step < 140; ++step) {
    const ShadowKvStep alone_a = a.Step(ops(), *one);
    const ShadowKvStep alone_b = b.Step(ops(), *one);
    // Rows of a call come in any order.
    std::vector<float> q(b.query(), b.query() + row);
    q.insert(q.end(), a.query(), a.query() + row);
    ShadowKvSequence sequences[2] = {a.Sequence(), b.Sequence()};
    sequences[0].row = 1;
    std::vector<int32_t> ids(static_cast<size_t>(2 * shape.config.kv_heads * 8), 0);
    const float scale = 1.0f / std::sqrt(static_cast<float>(shape.config.head_dim));
    ASSERT_TRUE(ops()
                    .shadowkv_select(*two,
                                     {.q = q.data(),
                                      .q_stride = row,
                                      .sequences = sequences,
                                      .num_sequences = 2,
                                      .heads = shape.heads,
                                      .scale = scale,
                                      .chunk_ids = ids.data(),
                                      .chunk_ids_stride = 8})
                    .ok());
    const auto half = static_cast<std::ptrdiff_t>(ids.size() / 2);
    EXPECT_EQ(std::vector<int32_t>(ids.begin(), ids.begin() + half), alone_a.chunk_ids);
    EXPECT_EQ(std::vector<int32_t>(ids.begin() + half, ids.end()), alone_b.chunk_ids);
    std::vector<float> out(q.size());
    ASSERT_TRUE(ops()
                    .shadowkv_attention(*two,
                                        {.q = q.data(),
                                         .q_stride = row,
                                         .sequences = sequences,
                                         .num_sequences = 2,
                                         .heads = shape.heads,
                                         .scale = scale,
                                         .chunk_ids = ids.data(),
                                         .chunk_ids_stride = 8,
                                         .rope = a.rope(),
                                         .out = out.data(),
                                         .out_stride = row})
                    .ok());
    ExpectSameBits({out.data() + row, static_cast<size_t>(row)}, alone_a.out);
    ExpectSameBits({out.data(), static_cast<size_t>(row)}, alone_b.out);
  }
}

TEST_P(ShadowKvDecodeTest, RefusesBrokenSequencesAndIds) {
  ShadowKvShape shape;
  shape.generated_tokens = 2;
  const ShadowKvContext context(ops(), 1, shape);
  ShadowKvProblem problem(ops(), *context, shape);
  problem.Append(ops(), *context);
  std::vector<float> out(static_cast<size_t>(shape.heads * shape.config.head_dim));
  const auto attend = [&](const auto& change) {
    ShadowKvSequence sequence = problem.Sequence();
    std::vector<int32_t> ids = {0, 1, -1, -1, -1, -1, -1, -1, 2, 45, -1, -1, -1, -1, -1, -1};
    ShadowKvAttentionParams params = {.q = problem.query(),
                                      .q_stride = 256,
                                      .sequences = &sequence,
                                      .num_sequences = 1,
                                      .heads = shape.heads,
                                      .scale = 1.0f,
                                      .chunk_ids = ids.data(),
                                      .chunk_ids_stride = 8,
                                      .rope = problem.rope(),
                                      .out = out.data(),
                                      .out_stride = 256};
    change(params, sequence, ids);
    return ops().shadowkv_attention(*context, params).code();
  };
  using P = ShadowKvAttentionParams;
  using S = ShadowKvSequence;
  using Ids = std::vector<int32_t>;
  const absl::StatusCode bad = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(attend([](P&, S&, Ids&) {}), absl::StatusCode::kOk);
  EXPECT_EQ(attend([](P&, S& s, Ids&) { s.position = 399; }), bad);
  EXPECT_EQ(attend([](P&, S& s, Ids&) { s.row = -1; }), bad);
  EXPECT_EQ(attend([](P&, S& s, Ids&) { s.max_generated = 0; }), bad);
  EXPECT_EQ(attend([](P&, S& s, Ids&) { s.prompt = nullptr; }), bad);
  EXPECT_EQ(attend([](P&, S& s, Ids&) { s.layout = nullptr; }), bad);
  EXPECT_EQ(attend([](P& p, S&, Ids&) { p.heads = 3; }), bad);
  EXPECT_EQ(attend([](P& p, S&, Ids&) { p.out_stride = 255; }), bad);
  EXPECT_EQ(attend([](P& p, S&, Ids&) { p.rope.positions = 400; }), bad);
  EXPECT_EQ(attend([](P&, S&, Ids& ids) { ids[1] = 0; }), bad);
  EXPECT_EQ(attend([](P&, S&, Ids& ids) { ids[9] = 46; }), bad);
  EXPECT_EQ(attend([](P&, S&, Ids& ids) { ids[0] = -2; }), bad);
  ShadowKvPromptLayout clustered = problem.layout();
  clustered.config.value_clusters = 4;
  EXPECT_EQ(attend([&](P&, S& s, Ids&) { s.layout = &clustered; }), bad) << "selector";
  clustered.config.selector = ShadowKvSelector::kQ2;
  EXPECT_EQ(attend([&](P& p, S& s, Ids&) {
              s.layout = &clustered;
              p.cluster_stride = 4;
            }),
            bad)
      << "no logits";
  std::vector<int32_t> ids(16);
  const ShadowKvSequence sequence = problem.Sequence();
  EXPECT_EQ(ops()
                .shadowkv_select(*context,
                                 {.q = problem.query(),
                                  .q_stride = 256,
                                  .sequences = &sequence,
                                  .num_sequences = 1,
                                  .heads = shape.heads,
                                  .scale = 1.0f,
                                  .chunk_ids = ids.data(),
                                  .chunk_ids_stride = 7})
                .code(),
            bad);
}

TEST_P(ShadowKvDecodeTest, ASmallWorkspaceIsRefused) {
  ShadowKvShape shape;
  shape.generated_tokens = 2;
  const ShadowKvContext context(ops(), 1, shape);
  ShadowKvProblem problem(ops(), *context, shape);
  problem.Append(ops(), *context);
  ThreadPool pool(1);
  Buffer workspace(64);
  const ExecContext small = {.pool = &pool, .workspace = &workspace};
  Buffer prompt(problem.layout().bytes);
  EXPECT_EQ(ops().shadowkv_encode(small, problem.EncodeParams(prompt.data())).code(),
            absl::StatusCode::kInvalidArgument);
  std::vector<int32_t> ids(16);
  const ShadowKvSequence sequence = problem.Sequence();
  EXPECT_EQ(ops()
                .shadowkv_select(small,
                                 {.q = problem.query(),
                                  .q_stride = 256,
                                  .sequences = &sequence,
                                  .num_sequences = 1,
                                  .heads = shape.heads,
                                  .scale = 1.0f,
                                  .chunk_ids = ids.data(),
                                  .chunk_ids_stride = 8})
                .code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_P(ShadowKvDecodeTest, NoSequencesDoNothing) {
  const ShadowKvShape shape;
  const ShadowKvContext context(ops(), 1, shape);
  EXPECT_TRUE(ops().shadowkv_append(*context, {}).ok());
  EXPECT_TRUE(ops().shadowkv_select(*context, {}).ok());
  EXPECT_TRUE(ops().shadowkv_attention(*context, {}).ok());
}

INSTANTIATE_TEST_SUITE_P(Backends,
                         ShadowKvDecodeTest,
                         testing::ValuesIn(kBackends),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace baton::kernels
