// What shadowkv_encode and shadowkv_append write, section by section.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/status/status.h"

#include "kernels/core/buffer.h"
#include "kernels/core/dtype.h"
#include "kernels/core/half.h"
#include "kernels/kv_format/dense.h"
#include "kernels/kv_format/quantize.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/kv_format/shadowkv_codec.h"
#include "kernels/ops/shadowkv_params.h"
#include "kernels/reference/reference_ops.h"
#include "tests/kernels/support/backends.h"
#include "tests/kernels/support/shadowkv_problem.h"

namespace baton::kernels {
namespace {

float Element(const std::byte* data, DType dtype, int64_t index) {
  if (dtype == DType::kF32) {
    return reinterpret_cast<const float*>(data)[index];
  }
  return BF16ToF32(reinterpret_cast<const uint16_t*>(data)[index]);
}

// Energy of the prompt's keys before RoPE that a prompt section's basis leaves out, over the whole.
double ResidualShare(const ShadowKvProblem& problem, const std::byte* prompt) {
  const ShadowKvPromptLayout& layout = problem.layout();
  const int64_t width = layout.config.width();
  double left = 0.0;
  double all = 0.0;
  std::vector<double> rest(static_cast<size_t>(width));
  for (int64_t t = 0; t < layout.prompt_tokens; ++t) {
    const float* key = problem.factored_key(t);
    std::copy(key, key + width, rest.begin());
    for (int64_t j = 0; j < layout.config.rank; ++j) {
      double dot = 0.0;
      for (int64_t i = 0; i < width; ++i) {
        dot += double{key[i]} *
               double{Element(prompt + layout.basis, layout.config.dtype, j * width + i)};
      }
      for (int64_t i = 0; i < width; ++i) {
        rest[static_cast<size_t>(i)] -=
            dot * double{Element(prompt + layout.basis, layout.config.dtype, j * width + i)};
      }
    }
    for (int64_t i = 0; i < width; ++i) {
      left += rest[static_cast<size_t>(i)] * rest[static_cast<size_t>(i)];
      all += double{key[i]} * double{key[i]};
    }
  }
  return left / all;
}

class ShadowKvEncodeTest : public BackendTest {
 protected:
  ShadowKvProblem Make(const ShadowKvShape& shape) const {
    const ShadowKvContext context(ops(), 2, shape);
    return {ops(), *context, shape};
  }
};

TEST_P(ShadowKvEncodeTest, WritesTheBytesOfATinyPromptDoneByHand) {
  // One head of 8 channels, chunks of 2, 7 tokens: chunks 0 and 1 coded, tokens 4 to 6 local. Key t
  // is 1 in channel t % 2, so the mean of each chunk has halves in channels 0 and 1; value t is t.
  ShadowKvShape shape;
  shape.heads = 1;
  shape.config = {.rank = 2,
                  .chunk_tokens = 2,
                  .outlier_chunks = 1,
                  .local_chunks = 1,
                  .value_bits = 4,
                  .dtype = DType::kF32,
                  .kv_heads = 1,
                  .head_dim = 8};
  shape.prompt_tokens = 7;
  const ShadowKvContext context(ops(), 1, shape);
  const ShadowKvPromptLayout layout(shape.config, 7);
  ASSERT_EQ(layout.coded.tokens, 4);
  const DensePageLayout pages = {
      .page_tokens = 7, .kv_heads = 1, .head_dim = 8, .dtype = DType::kF32};
  Buffer page(pages.stride_bytes());
  for (int32_t t = 0; t < 7; ++t) {
    reinterpret_cast<float*>(page.data() + pages.key_offset(0, t))[t % 2] = 1.0f;
    for (int i = 0; i < 8; ++i) {
      reinterpret_cast<float*>(page.data() + pages.value_offset(0, t))[i] =
          static_cast<float>(t + i);
    }
  }
  const std::vector<float> cosines(7 * 4, 1.0f);  // no rotation
  const std::vector<float> sines(7 * 4, 0.0f);
  const int32_t page_table[] = {0};
  Buffer prompt(layout.bytes);
  std::memset(prompt.data(), 0xff, prompt.size());
  ASSERT_TRUE(ops()
                  .shadowkv_encode(
                      *context,
                      {.layout = layout,
                       .pages = {.base = page.data(), .layout = pages},
                       .page_table = page_table,
                       .rope = {.cosines = cosines.data(), .sines = sines.data(), .positions = 7},
                       .prompt = prompt.data()})
                  .ok());
  const auto floats = [&](size_t offset, size_t count) {
    const auto* begin = reinterpret_cast<const float*>(prompt.data() + offset);
    return std::vector<float>(begin, begin + count);
  };
  // Four keys along channel 0 and three along channel 1.
  const std::vector<float> basis = {1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0};
  EXPECT_EQ(floats(layout.basis, 16), basis);
  const size_t coded = layout.coded_begin;
  EXPECT_EQ(floats(coded + layout.coded.coefficients, 8),
            (std::vector<float>{1, 0, 0, 1, 1, 0, 0, 1}));
  EXPECT_EQ(floats(coded + layout.coded.landmarks, 4), (std::vector<float>{0.5, 0.5, 0, 0}));
  EXPECT_EQ(floats(coded + layout.coded.landmarks + 32, 4), (std::vector<float>{0.5, 0.5, 0, 0}));
  // Value t is t .. t + 7 in 15 steps: scale 7/15 rounded up to fp16, zero t.
  const auto* pairs =
      reinterpret_cast<const uint16_t*>(prompt.data() + coded + layout.coded.value_scales);
  const auto* codes = reinterpret_cast<const uint8_t*>(prompt.data() + coded + layout.coded.values);
  for (int t = 0; t < 4; ++t) {
    EXPECT_EQ(pairs[2 * t], F32ToF16Up(7.0f / 15.0f));
    EXPECT_EQ(F16ToF32(pairs[2 * t + 1]), static_cast<float>(t));
    // round(i x 15 / 7) for i = 0 .. 7: 0 2 4 6 9 11 13 15.
    EXPECT_EQ(std::vector<uint8_t>(codes + 4 * t, codes + 4 * t + 4),
              (std::vector<uint8_t>{0x20, 0x64, 0xb9, 0xfd}));
  }
  // Equal cosines: the lower chunk is the outlier.
  EXPECT_EQ(*reinterpret_cast<const int32_t*>(prompt.data() + layout.static_ids), 0);
  EXPECT_EQ(floats(layout.static_keys, 16),
            (std::vector<float>{1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(floats(layout.static_values, 3), (std::vector<float>{0, 1, 2}));
  EXPECT_EQ(floats(layout.local_keys + 64, 2), (std::vector<float>{1, 0}));
  EXPECT_EQ(floats(layout.local_values + 64, 2), (std::vector<float>{6, 7}));
  EXPECT_EQ(floats(layout.local_values + 96, 8), std::vector<float>(8, 0.0f));  // padding
}

TEST_P(ShadowKvEncodeTest, BasisLeavesOutWithinOnePercentOfTheLeastEnergy) {
  struct Case {
    int32_t kv_heads;
    int32_t head_dim;
    int32_t rank;
    int64_t key_rank;
    float noise;
  };
  // Solved in full, iterated, fewer directions than the rank, and nothing but noise.
  for (const Case& c : {Case{2, 64, 32, 48, 0.2f},
                        Case{3, 64, 30, 48, 0.2f},
                        Case{3, 64, 30, 8, 0.0f},
                        Case{3, 64, 20, 1, 1.0f}}) {
    SCOPED_TRACE(testing::Message() << c.kv_heads << " heads, rank " << c.rank);
    ShadowKvShape shape;
    shape.config.dtype = DType::kF32;
    shape.config.kv_heads = c.kv_heads;
    shape.config.head_dim = c.head_dim;
    shape.config.rank = c.rank;
    shape.heads = c.kv_heads;
    shape.key_rank = c.key_rank;
    shape.key_noise = c.noise;
    const ShadowKvProblem problem = Make(shape);
    const ShadowKvContext context(ReferenceOps(), 1, shape);
    const ShadowKvProblem oracle(ReferenceOps(), *context, shape);
    const double least = ResidualShare(oracle, oracle.prompt());
    EXPECT_LE(ResidualShare(problem, problem.prompt()), 1.01 * least + 1e-10);
  }
}

TEST_P(ShadowKvEncodeTest, BasisRowsAreOrthonormal) {
  ShadowKvShape shape;
  shape.config.dtype = DType::kF32;
  shape.config.kv_heads = 3;
  shape.config.rank = 40;
  shape.heads = 3;
  shape.key_rank = 8;
  shape.key_noise = 0.0f;
  const ShadowKvProblem problem = Make(shape);
  const int64_t width = shape.config.width();
  const auto* basis = reinterpret_cast<const float*>(problem.prompt() + problem.layout().basis);
  for (int64_t a = 0; a < 40; ++a) {
    for (int64_t b = 0; b <= a; ++b) {
      double dot = 0.0;
      for (int64_t i = 0; i < width; ++i) {
        dot += double{basis[a * width + i]} * double{basis[b * width + i]};
      }
      ASSERT_NEAR(dot, a == b ? 1.0 : 0.0, 1e-5) << "rows " << a << " and " << b;
    }
  }
}

TEST_P(ShadowKvEncodeTest, RemovingTheBiasLowersTheResidual) {
  ShadowKvShape shape;
  shape.key_rank = 32;
  shape.key_bias = 5.0f;
  const ShadowKvContext context(ops(), 1, shape);
  const ShadowKvProblem problem(ops(), *context, shape);
  ShadowKvEncodeParams params = problem.EncodeParams(nullptr);
  params.key_bias = nullptr;
  Buffer without(problem.layout().bytes);
  params.prompt = without.data();
  ASSERT_TRUE(ops().shadowkv_encode(*context, params).ok());
  EXPECT_LT(ResidualShare(problem, problem.prompt()),
            0.99 * ResidualShare(problem, without.data()));
}

TEST_P(ShadowKvEncodeTest, LandmarksAreMeansAndBoundsHoldForEveryKey) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    ShadowKvShape shape;
    shape.config.dtype = dtype;
    shape.config.selector = ShadowKvSelector::kBounds;
    const ShadowKvProblem problem = Make(shape);
    const ShadowKvPromptLayout& layout = problem.layout();
    const ShadowKvCodedView view(
        layout.config, layout.coded, problem.prompt() + layout.coded_begin);
    for (int64_t head = 0; head < 2; ++head) {
      for (int64_t chunk = 0; chunk < layout.coded.chunks; ++chunk) {
        for (int64_t i = 0; i < 64; ++i) {
          const float mean = Element(view.Landmarks(head), dtype, chunk * 64 + i);
          const float deviation = Element(view.Deviations(head), dtype, chunk * 64 + i);
          double sum = 0.0;
          float largest = 0.0f;
          for (int64_t t = 8 * chunk; t < 8 * chunk + 8; ++t) {
            const float key = problem.key(t)[head * 64 + i];
            sum += double{key};
            largest = std::max(largest, std::fabs(key - mean));
          }
          ASSERT_NEAR(mean, sum / 8.0, dtype == DType::kF32 ? 1e-5 : 0.02);
          ASSERT_GE(deviation, largest);
          ASSERT_LE(deviation, 1.01f * largest);
        }
      }
    }
  }
}

TEST_P(ShadowKvEncodeTest, LandmarksInCodesAreMeansUpToHalfAStep) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    ShadowKvShape shape;
    shape.config.dtype = dtype;
    shape.config.landmark_bits = 8;
    const ShadowKvProblem problem = Make(shape);
    const ShadowKvPromptLayout& layout = problem.layout();
    const ShadowKvCodedView view(
        layout.config, layout.coded, problem.prompt() + layout.coded_begin);
    for (int64_t head = 0; head < 2; ++head) {
      const auto* codes = reinterpret_cast<const uint8_t*>(view.Landmarks(head));
      for (int64_t chunk = 0; chunk < layout.coded.chunks; ++chunk) {
        const uint16_t* pair = view.LandmarkScales(head) + 2 * chunk;
        const double scale = double{F16ToF32(pair[0])};
        const double zero = double{F16ToF32(pair[1])};
        for (int64_t i = 0; i < 64; ++i) {
          double mean = 0.0;
          for (int64_t t = 8 * chunk; t < 8 * chunk + 8; ++t) {
            mean += double{problem.key(t)[head * 64 + i]} / 8.0;
          }
          // Half a step, and what scale and zero lose as fp16.
          ASSERT_NEAR(zero + scale * codes[chunk * 64 + i], mean, 0.51 * scale + 1e-3)
              << SeedMessage();
        }
      }
    }
  }
}

TEST_P(ShadowKvEncodeTest, OutliersAreTheChunksOfTheLowestCosine) {
  ShadowKvShape shape;
  shape.config.outlier_chunks = 4;
  shape.config.sink_chunks = 2;
  const ShadowKvProblem problem = Make(shape);
  const ShadowKvPromptLayout& layout = problem.layout();
  ASSERT_EQ(layout.static_chunks, 6);
  const auto* ids = reinterpret_cast<const int32_t*>(problem.prompt() + layout.static_ids);
  for (int64_t head = 0; head < 2; ++head) {
    std::vector<std::pair<double, int32_t>> scores;
    for (int32_t chunk = 2; chunk < layout.coded.chunks; ++chunk) {
      double mean[64] = {};
      double lowest = 2.0;
      for (int64_t i = 0; i < 64; ++i) {
        for (int64_t t = 0; t < 8; ++t) {
          mean[i] += double{problem.key(8 * chunk + t)[head * 64 + i]} / 8.0;
        }
      }
      for (int64_t t = 0; t < 8; ++t) {
        double dot = 0.0;
        double kk = 0.0;
        double mm = 0.0;
        for (int64_t i = 0; i < 64; ++i) {
          const double key = problem.key(8 * chunk + t)[head * 64 + i];
          dot += key * mean[i];
          kk += key * key;
          mm += mean[i] * mean[i];
        }
        lowest = std::min(lowest, dot / std::sqrt(kk * mm));
      }
      scores.emplace_back(lowest, chunk);
    }
    std::sort(scores.begin(), scores.end());
    std::vector<int32_t> want = {0, 1};
    for (size_t i = 0; i < 4; ++i) {
      want.push_back(scores[i].second);
    }
    std::sort(want.begin(), want.end());
    EXPECT_EQ(std::vector<int32_t>(ids + 6 * head, ids + 6 * head + 6), want);
    for (int64_t i = 0; i < 6 * 8; ++i) {
      const int64_t token = want[static_cast<size_t>(i / 8)] * 8 + i % 8;
      const int64_t vector = (6 * 8 * head + i) * 64;
      for (int64_t c = 0; c < 64; ++c) {
        ASSERT_EQ(Element(problem.prompt() + layout.static_keys, DType::kBF16, vector + c),
                  problem.key(token)[head * 64 + c]);
        ASSERT_EQ(Element(problem.prompt() + layout.static_values, DType::kBF16, vector + c),
                  problem.value(token)[head * 64 + c]);
      }
    }
  }
}

TEST_P(ShadowKvEncodeTest, CodedValuesAndKeysAreWithinHalfAStep) {
  for (const int32_t bits : {8, 4, 2}) {
    ShadowKvShape shape;
    shape.config.value_bits = bits;
    shape.config.selector = ShadowKvSelector::kQ2;
    const ShadowKvProblem problem = Make(shape);
    const ShadowKvPromptLayout& layout = problem.layout();
    const ShadowKvCodedView view(
        layout.config, layout.coded, problem.prompt() + layout.coded_begin);
    const auto check = [](const float* x, const uint8_t* codes, const uint16_t* pair, int32_t b) {
      const QuantRange range = {.scale = pair[0], .zero = pair[1]};
      for (int64_t i = 0; i < 64; ++i) {
        const float decoded = DequantCode(ShadowKvLoadCode(codes, i, b), range);
        ASSERT_LE(std::fabs(decoded - x[i]), 0.5001f * F16ToF32(range.scale));
      }
    };
    for (int64_t token = 0; token < layout.coded.tokens; ++token) {
      for (int64_t head = 0; head < 2; ++head) {
        check(problem.value(token) + 64 * head,
              reinterpret_cast<const uint8_t*>(view.Value(head, token)),
              view.ValueScale(head, token),
              bits);
        check(problem.key(token) + 64 * head,
              view.KeyCodes(head, token),
              view.KeyScale(head, token),
              2);
      }
    }
  }
}

TEST_P(ShadowKvEncodeTest, EveryTokenIsInAClusterWhoseMeanIsThatOfItsTokens) {
  ShadowKvShape shape;
  shape.config.selector = ShadowKvSelector::kQ2;
  shape.config.value_clusters = 12;
  shape.config.dtype = DType::kF32;
  shape.value_kinds = 9;
  const ShadowKvContext context(ops(), 2, shape);
  const ShadowKvProblem problem(ops(), *context, shape);
  const ShadowKvPromptLayout& layout = problem.layout();
  const int64_t dim = shape.config.head_dim;
  const int64_t tokens = layout.coded.tokens;
  for (int64_t head = 0; head < shape.config.kv_heads; ++head) {
    const auto* ids = reinterpret_cast<const uint8_t*>(problem.prompt() + layout.coded_begin +
                                                       layout.coded.cluster_ids) +
                      head * tokens;
    const auto* means =
        reinterpret_cast<const float*>(problem.prompt() + layout.cluster_values) + head * 12 * dim;
    std::vector<double> sums(static_cast<size_t>(12 * dim));
    std::vector<int64_t> counts(12);
    for (int64_t t = 0; t < tokens; ++t) {
      ASSERT_LT(ids[t], 12);
      ++counts[ids[t]];
      for (int64_t i = 0; i < dim; ++i) {
        sums[static_cast<size_t>(ids[t] * dim + i)] += double{problem.value(t)[head * dim + i]};
      }
    }
    for (int64_t c = 0; c < 12; ++c) {
      for (int64_t i = 0; counts[static_cast<size_t>(c)] > 0 && i < dim; ++i) {
        EXPECT_NEAR(means[c * dim + i],
                    sums[static_cast<size_t>(c * dim + i)] /
                        static_cast<double>(counts[static_cast<size_t>(c)]),
                    1e-5)
            << SeedMessage();
      }
    }
  }
}

TEST_P(ShadowKvEncodeTest, ThreadsChangeNoByteAndPaddingIsZero) {
  for (const int32_t kv_heads : {2, 3}) {
    ShadowKvShape shape;
    shape.config.kv_heads = kv_heads;
    shape.config.rank = 30;
    shape.config.outlier_chunks = 3;
    shape.config.value_bits = 4;
    shape.config.int8_coefficients = true;
    shape.heads = kv_heads;
    shape.prompt_tokens = 613;
    const ShadowKvContext one(ops(), 1, shape);
    const ShadowKvContext two(ops(), 2, shape);
    const ShadowKvProblem a(ops(), *one, shape);
    const ShadowKvProblem b(ops(), *two, shape);
    EXPECT_TRUE(std::ranges::equal(a.prompt_bytes(), b.prompt_bytes()));
    const ShadowKvPromptLayout& layout = a.layout();
    const size_t ids_end = layout.static_ids + static_cast<size_t>(kv_heads) * 3 * 4;
    EXPECT_TRUE(std::all_of(a.prompt() + ids_end, a.prompt() + layout.static_keys, [](std::byte x) {
      return x == std::byte{0};
    }));
  }
}

TEST_P(ShadowKvEncodeTest, ABlockOfTheTailIsCodedLikeThePrompt) {
  // The same tokens once as a prompt and once behind a shorter prompt with the same basis: with a
  // full-rank basis the coded sections differ only in their coefficients.
  for (const bool codes : {false, true}) {
    ShadowKvShape shape;
    shape.config.value_bits = 4;
    shape.config.selector = codes ? ShadowKvSelector::kMean : ShadowKvSelector::kBounds;
    shape.config.landmark_bits = codes ? 8 : 16;
    shape.prompt_tokens = 96;
    shape.generated_tokens = 200;
    const ShadowKvContext context(ops(), 1, shape);
    ShadowKvProblem problem(ops(), *context, shape);
    while (problem.tokens() < 296) {
      problem.Append(ops(), *context);
    }
    ShadowKvShape whole = shape;
    whole.prompt_tokens = 296;
    whole.generated_tokens = 0;
    const ShadowKvProblem prompt(ops(), *context, whole);
    const ShadowKvTailLayout tail = problem.tail_layout();
    ASSERT_EQ(tail.BlocksAt(296), 2);
    const ShadowKvPromptLayout& layout = prompt.layout();
    const ShadowKvCodedView want(layout.config, layout.coded, prompt.prompt() + layout.coded_begin);
    for (int64_t block = 0; block < 2; ++block) {
      const ShadowKvCodedView got(
          tail.config, tail.block, problem.tail_bytes().data() + tail.block_begin(block));
      const int64_t first = 64 + 64 * block;
      const int64_t chunk = first / 8;
      const int64_t row_bytes = codes ? 64 : 128;
      for (int64_t head = 0; head < 2; ++head) {
        const auto same = [](const void* a, const void* b, size_t bytes) {
          return std::memcmp(a, b, bytes) == 0;
        };
        EXPECT_TRUE(same(got.Value(head, 0), want.Value(head, first), 64 * 32));
        EXPECT_TRUE(same(got.ValueScale(head, 0), want.ValueScale(head, first), 64 * 4));
        EXPECT_TRUE(same(got.Landmarks(head),
                         want.Landmarks(head) + chunk * row_bytes,
                         static_cast<size_t>(8 * row_bytes)));
        EXPECT_TRUE(
            codes ? same(got.LandmarkScales(head), want.LandmarkScales(head) + 2 * chunk, 8 * 4)
                  : same(got.Deviations(head),
                         want.Deviations(head) + chunk * row_bytes,
                         static_cast<size_t>(8 * row_bytes)));
      }
    }
  }
}

TEST_P(ShadowKvEncodeTest, KeysOfZeroGiveNoNan) {
  ShadowKvShape shape;
  shape.key_rank = 1;
  shape.key_noise = 0.0f;
  shape.config.kv_heads = 3;
  shape.heads = 3;
  shape.config.outlier_chunks = 2;
  const ShadowKvContext context(ops(), 1, shape);
  const ShadowKvProblem problem(ops(), *context, shape);
  ShadowKvEncodeParams params = problem.EncodeParams(nullptr);
  Buffer zeros(params.pages.layout.stride_bytes() * 16);
  params.pages.base = zeros.data();
  Buffer prompt(problem.layout().bytes);
  params.prompt = prompt.data();
  ASSERT_TRUE(ops().shadowkv_encode(*context, params).ok());
  const auto* bits = prompt.as<uint16_t>();
  for (int64_t i = 0; i < shape.config.rank * shape.config.width(); ++i) {
    ASSERT_TRUE(std::isfinite(BF16ToF32(bits[i])));
  }
}

TEST_P(ShadowKvEncodeTest, RefusesWhatItCannotCode) {
  const ShadowKvShape shape;
  const ShadowKvContext context(ops(), 1, shape);
  const ShadowKvProblem problem(ops(), *context, shape);
  Buffer prompt(problem.layout().bytes);
  const auto code = [&](const auto& change) {
    ShadowKvEncodeParams params = problem.EncodeParams(prompt.data());
    change(params);
    return ops().shadowkv_encode(*context, params).code();
  };
  using P = ShadowKvEncodeParams;
  EXPECT_EQ(code([](P&) {}), absl::StatusCode::kOk);
  const absl::StatusCode bad = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(code([](P& p) { p.layout.config.rank = 0; }), bad);
  EXPECT_EQ(code([](P& p) { p.layout.config.rank = 129; }), bad);
  EXPECT_EQ(code([](P& p) { p.layout.config.chunk_tokens = 3; }), bad);
  EXPECT_EQ(code([](P& p) { p.layout.config.value_bits = 3; }), bad);
  EXPECT_EQ(code([](P& p) { p.pages.layout.dtype = DType::kF32; }), bad);
  EXPECT_EQ(code([](P& p) { p.rope.positions = 399; }), bad);
  EXPECT_EQ(code([](P& p) { p.prompt = nullptr; }), bad);
}

INSTANTIATE_TEST_SUITE_P(Backends,
                         ShadowKvEncodeTest,
                         testing::ValuesIn(kBackends),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace baton::kernels
