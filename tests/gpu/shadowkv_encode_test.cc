// What shadowkv_encode writes on the device. What depends on no factor has
// the reference's bytes; factors are judged by what they leave out.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/half.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/op_table.h"
#include "kernels/ops/shadowkv_params.h"
#include "kernels/reference/reference_ops.h"
#include "tests/gpu/support/device_shadowkv_prompt.h"
#include "tests/gpu/support/gpu_test.h"
#include "tests/gpu/support/shadowkv_basis.h"
#include "tests/kernels/support/backends.h"
#include "tests/kernels/support/shadowkv_problem.h"

namespace baton::kernels::cuda {
namespace {

// Every coefficient of the tokens is a product of key and basis, up to its own code's error.
void ExpectProjections(const ShadowKvProblem& problem, const std::vector<std::byte>& prompt) {
  const ShadowKvPromptLayout& layout = problem.layout();
  const ShadowKvConfig& config = layout.config;
  const std::vector<float> basis = BasisOf(layout, prompt.data());
  const std::byte* section = prompt.data() + layout.coded_begin + layout.coded.coefficients;
  const ShadowKvCoefficientLayout coefficients(config, layout.coded.tokens);
  const auto* scales = reinterpret_cast<const uint16_t*>(section + coefficients.scales);
  for (int64_t t = 0; t < layout.coded.tokens; ++t) {
    const std::vector<float> key = FactoredKey(problem, t);
    // Of products summed in fp32, and of keys as sums of two bf16 numbers.
    const double rounding = 3e-6 * std::sqrt(Dot(key.data(), key.data(), config.width())) + 1e-6;
    for (int64_t j = 0; j < config.rank; ++j) {
      const int64_t at = t * config.rank + j;
      const double want = Dot(key.data(), basis.data() + j * config.width(), config.width());
      if (config.int8_coefficients) {
        const float scale = F16ToF32(scales[t / 64 * config.rank + j]);
        const auto code = static_cast<float>(reinterpret_cast<const int8_t*>(section)[at]);
        ASSERT_NEAR(code * scale, want, 0.5 * double{scale} + rounding)
            << "token " << t << " rank " << j;
      } else {
        const float got =
            Numbers(section + static_cast<size_t>(at) * DTypeBytes(config.dtype), config.dtype, 1)
                .front();
        const double relative = config.dtype == DType::kF32 ? 1e-5 : 0x1p-8;
        ASSERT_NEAR(got, want, relative * std::fabs(want) + rounding)
            << "token " << t << " rank " << j;
      }
    }
  }
}

void ExpectSameBytes(std::span<const std::byte> got,
                     std::span<const std::byte> want,
                     size_t begin,
                     size_t end) {
  for (size_t i = begin; i < end; ++i) {
    ASSERT_EQ(got[i], want[i]) << "byte " << i << " of " << begin << " to " << end << ", "
                               << SeedMessage();
  }
}

// All but basis and coefficients.
void ExpectSameButForFactors(const ShadowKvPromptLayout& layout,
                             std::span<const std::byte> got,
                             std::span<const std::byte> want) {
  const size_t basis_end = layout.basis + static_cast<size_t>(layout.config.rank) *
                                              static_cast<size_t>(layout.config.kv_heads) *
                                              layout.config.vector_bytes();
  ExpectSameBytes(got, want, basis_end, layout.coded_begin);
  ExpectSameBytes(got, want, layout.coded_begin + layout.coded.landmarks, layout.bytes);
}

ShadowKvWorkspaceSizes SizesOf(const ShadowKvShape& shape) {
  return {.config = shape.config,
          .heads = shape.heads,
          .max_tokens = shape.prompt_tokens + shape.generated_tokens};
}

class ShadowKvEncodeGpuTest : public GpuTest {
 protected:
  void Check(const ShadowKvShape& shape) const {
    const ShadowKvContext host(ReferenceOps(), 1, shape);
    const ShadowKvProblem want(ReferenceOps(), *host, shape);
    const DeviceShadowKvPrompt device(want);
    const std::vector<std::byte> got = device.Encode(ops(), context());
    ASSERT_NO_FATAL_FAILURE(ExpectSameButForFactors(want.layout(), got, want.prompt_bytes()));
    if (shape.config.values_apart) {
      const ShadowKvCodedLayout& coded = want.layout().coded;
      const size_t written = static_cast<size_t>(shape.config.kv_heads * coded.tokens) *
                             shape.config.coded_value_bytes();
      ExpectSameBytes(device.values(), want.value_prompt_bytes(), 0, written);
    }
    ASSERT_NO_FATAL_FAILURE(ExpectProjections(want, got));
    const double least = LeftOut(want, BasisOf(want.layout(), want.prompt()));
    EXPECT_LE(LeftOut(want, BasisOf(want.layout(), got.data())),
              1.01 * least + Rounding(shape.config.dtype));
  }

  // bf16 rounds the rows: their lengths are 2^-9 off.
  static double Rounding(DType dtype) { return dtype == DType::kF32 ? 1e-6 : 2e-3; }
};

TEST_F(ShadowKvEncodeGpuTest, EverySelectorAndDType) {
  for (const ShadowKvSelector selector :
       {ShadowKvSelector::kMean, ShadowKvSelector::kBounds, ShadowKvSelector::kQ2}) {
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      SCOPED_TRACE(absl::StrCat("selector ", static_cast<int>(selector), " ", DTypeBytes(dtype)));
      ShadowKvShape shape;
      shape.config.selector = selector;
      shape.config.dtype = dtype;
      shape.config.outlier_chunks = 5;
      shape.config.sink_chunks = 2;
      shape.prompt_tokens = 301;
      Check(shape);
    }
  }
}

TEST_F(ShadowKvEncodeGpuTest, LandmarksInCodes) {
  for (const int32_t chunk : {1, 2, 4, 8}) {
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      SCOPED_TRACE(absl::StrCat("chunks of ", chunk, " ", DTypeBytes(dtype)));
      ShadowKvShape shape;
      shape.config.landmark_bits = 8;
      shape.config.dtype = dtype;
      shape.config.chunk_tokens = chunk;
      shape.config.head_dim = chunk == 8 ? 128 : 64;
      shape.config.outlier_chunks = 3;
      shape.prompt_tokens = 203;
      Check(shape);
    }
  }
}

TEST_F(ShadowKvEncodeGpuTest, EveryCode) {
  for (const int32_t bits : {2, 4, 8}) {
    for (const int32_t chunk : {1, 2, 4, 8}) {
      SCOPED_TRACE(absl::StrCat(bits, " bits, chunks of ", chunk));
      ShadowKvShape shape;
      shape.config.value_bits = bits;
      shape.config.chunk_tokens = chunk;
      shape.config.selector = bits == 4 ? ShadowKvSelector::kQ2 : ShadowKvSelector::kBounds;
      shape.config.int8_coefficients = bits != 8;
      shape.config.outlier_chunks = 3;
      shape.key_bias = 1.0f;
      shape.prompt_tokens = 203;
      Check(shape);
    }
  }
}

TEST_F(ShadowKvEncodeGpuTest, ValuesApartGoToMemoryOfTheHost) {
  for (const int32_t bits : {2, 4, 8, 16}) {
    SCOPED_TRACE(absl::StrCat(bits, " bits"));
    ShadowKvShape shape;
    shape.config.value_bits = bits;
    shape.config.values_apart = true;
    shape.config.outlier_chunks = 3;
    shape.prompt_tokens = 203;
    Check(shape);
  }
}

TEST_F(ShadowKvEncodeGpuTest, HeadsAndHeadDims) {
  for (const int32_t dim : {8, 64, 72, 128}) {
    for (const int32_t heads : {1, 3}) {
      if (dim * heads > 256) {
        continue;  // the reference takes seconds
      }
      SCOPED_TRACE(absl::StrCat(heads, " heads of ", dim));
      ShadowKvShape shape;
      shape.config.kv_heads = heads;
      shape.config.head_dim = dim;
      shape.heads = heads;
      shape.config.rank = 8;
      shape.config.selector = ShadowKvSelector::kQ2;
      shape.config.value_bits = 4;
      shape.config.outlier_chunks = 1;
      shape.prompt_tokens = 150;
      Check(shape);
    }
  }
}

TEST_F(ShadowKvEncodeGpuTest, PromptsThatAreMostlyLocalOrStatic) {
  for (const int64_t tokens : {1, 7, 33, 40, 47, 64, 97}) {
    for (const int32_t outliers : {0, 1, 100}) {
      SCOPED_TRACE(absl::StrCat(tokens, " tokens, ", outliers, " outliers"));
      ShadowKvShape shape;
      shape.config.outlier_chunks = outliers;
      shape.config.sink_chunks = 1;
      shape.config.rank = 16;
      shape.prompt_tokens = tokens;
      Check(shape);
    }
  }
}

// Shapes small enough for tools that look at every access: a few million of them a prompt.
class ShadowKvEncodeSmallGpuTest : public ShadowKvEncodeGpuTest {
 protected:
  // 64 columns: one matrix of the solver's smallest size.
  static ShadowKvShape Shape() {
    ShadowKvShape shape;
    shape.heads = 2;
    shape.config.head_dim = 32;
    shape.config.rank = 8;
    shape.config.chunk_tokens = 4;
    shape.config.budget_tokens = 16;
    shape.config.outlier_chunks = 2;
    shape.config.sink_chunks = 1;
    shape.key_rank = 12;
    shape.prompt_tokens = 101;
    return shape;
  }
};

TEST_F(ShadowKvEncodeSmallGpuTest, EverySelectorAndDType) {
  for (const ShadowKvSelector selector :
       {ShadowKvSelector::kMean, ShadowKvSelector::kBounds, ShadowKvSelector::kQ2}) {
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      SCOPED_TRACE(absl::StrCat("selector ", static_cast<int>(selector), " ", DTypeBytes(dtype)));
      ShadowKvShape shape = Shape();
      shape.config.selector = selector;
      shape.config.dtype = dtype;
      Check(shape);
    }
  }
}

// Heads of whole stages; two blocks of two groups of tokens, the last of which has half of one.
TEST_F(ShadowKvEncodeSmallGpuTest, CoefficientsByWarpgroups) {
  for (const bool int8 : {false, true}) {
    ShadowKvShape shape = Shape();
    shape.heads = 1;
    shape.config.kv_heads = 1;
    shape.config.head_dim = 64;
    shape.config.int8_coefficients = int8;
    shape.key_bias = 1.0f;
    shape.prompt_tokens = 170;
    Check(shape);
  }
}

TEST_F(ShadowKvEncodeSmallGpuTest, LandmarksInCodes) {
  ShadowKvShape shape = Shape();
  shape.config.landmark_bits = 8;
  Check(shape);
}

TEST_F(ShadowKvEncodeSmallGpuTest, EveryCode) {
  for (const int32_t bits : {2, 4, 8}) {
    SCOPED_TRACE(absl::StrCat(bits, " bits"));
    ShadowKvShape shape = Shape();
    shape.config.value_bits = bits;
    shape.config.int8_coefficients = bits != 8;
    shape.key_bias = 1.0f;
    Check(shape);
  }
}

TEST_F(ShadowKvEncodeSmallGpuTest, ClustersHaveTheReferencesBytes) {
  ShadowKvShape shape = Shape();
  shape.config.selector = ShadowKvSelector::kQ2;
  shape.config.value_clusters = 5;
  Check(shape);
}

// Pages end within what a thread reads at once.
TEST_F(ShadowKvEncodeSmallGpuTest, PagesOfAnyLength) {
  for (const int32_t page_tokens : {1, 12, 40}) {
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      SCOPED_TRACE(absl::StrCat(page_tokens, " tokens a page, ", DTypeBytes(dtype)));
      ShadowKvShape shape = Shape();
      shape.page_tokens = page_tokens;
      shape.config.dtype = dtype;
      Check(shape);
    }
  }
}

TEST_F(ShadowKvEncodeSmallGpuTest, IteratedWithOneBlockOfRows) {
  ShadowKvShape shape = Shape();
  shape.config.kv_heads = 3;
  shape.heads = 3;
  shape.config.head_dim = 48;
  Check(shape);
}

TEST_F(ShadowKvEncodeSmallGpuTest, IteratedWithTwoBlocksOfRows) {
  ShadowKvShape shape = Shape();
  shape.config.kv_heads = 5;
  shape.heads = 5;
  shape.config.head_dim = 64;
  shape.config.rank = 40;
  shape.key_rank = 60;
  Check(shape);
}

// Scores that differ and scores that are all the same, more chunks than a block has threads.
TEST_F(ShadowKvEncodeGpuTest, StaticChunksAmongMany) {
  for (const float noise : {0.1f, 0.0f}) {
    for (const int32_t outliers : {1, 48, 1500}) {
      SCOPED_TRACE(absl::StrCat("noise ", noise, " outliers ", outliers));
      ShadowKvShape shape;
      shape.config.kv_heads = 1;
      shape.heads = 1;
      shape.config.head_dim = 8;
      shape.config.rank = 2;
      shape.config.chunk_tokens = 2;
      shape.config.outlier_chunks = outliers;
      shape.config.sink_chunks = 1;
      shape.key_rank = noise > 0.0f ? 16 : 0;
      shape.key_noise = noise;
      shape.prompt_tokens = 4500;
      Check(shape);
    }
  }
}

TEST_F(ShadowKvEncodeGpuTest, ClustersHaveTheReferencesBytes) {
  for (const int32_t clusters : {1, 12, 33, 256}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      SCOPED_TRACE(absl::StrCat(clusters, " clusters"));
      ShadowKvShape shape;
      shape.config.selector = ShadowKvSelector::kQ2;
      shape.config.value_clusters = clusters;
      shape.config.dtype = dtype;
      shape.config.rank = 8;
      shape.value_kinds = clusters == 12 ? 9 : 0;
      shape.prompt_tokens = clusters == 33 ? 1219 : 413;
      Check(shape);
    }
  }
}

// Solved in full, iterated with one block of rows and with two, fewer directions than the rank,
// nothing but noise, and keys of zero.
TEST_F(ShadowKvEncodeGpuTest, BasisIsOrthonormalAndLeavesOutLittle) {
  struct Case {
    int32_t kv_heads;
    int32_t rank;
    int64_t key_rank;
    float noise;
  };
  for (const Case& c : {Case{2, 32, 48, 0.2f},
                        Case{3, 30, 48, 0.2f},
                        Case{3, 30, 8, 0.0f},
                        Case{3, 20, 1, 1.0f},
                        Case{4, 60, 90, 0.3f},
                        Case{5, 90, 120, 0.3f},
                        Case{3, 30, 0, 0.0f}}) {
    SCOPED_TRACE(absl::StrCat(c.kv_heads, " heads, rank ", c.rank, ", key rank ", c.key_rank));
    ShadowKvShape shape;
    shape.config.dtype = DType::kF32;
    shape.config.kv_heads = c.kv_heads;
    shape.config.rank = c.rank;
    shape.heads = c.kv_heads;
    shape.key_rank = c.key_rank;
    shape.key_noise = c.noise;
    const ShadowKvContext host(ReferenceOps(), 1, shape);
    const ShadowKvProblem problem(ReferenceOps(), *host, shape);
    const std::vector<std::byte> prompt = DeviceShadowKvPrompt(problem).Encode(ops(), context());
    const std::vector<float> basis = BasisOf(problem.layout(), prompt.data());
    const int64_t width = shape.config.width();
    for (int64_t a = 0; a < c.rank; ++a) {
      const float* row = basis.data() + a * width;
      for (int64_t b = 0; b <= a; ++b) {
        ASSERT_NEAR(Dot(row, basis.data() + b * width, width), a == b ? 1.0 : 0.0, 1e-5);
      }
      const auto [least, most] = std::minmax_element(row, row + width);
      EXPECT_GE(*most, -*least) << "row " << a;
    }
    const std::vector<double> shares = Shares(problem, basis);
    for (size_t j = 1; j < shares.size(); ++j) {
      EXPECT_LE(shares[j], shares[j - 1] + 1e-6) << "row " << j;
    }
    const double least = LeftOut(problem, BasisOf(problem.layout(), problem.prompt()));
    EXPECT_LE(LeftOut(problem, basis), 1.01 * least + 1e-6);
  }
}

// More tokens than a slab of keys has room for, more directions than a block of rows.
TEST_F(ShadowKvEncodeGpuTest, ManyTokensAndColumns) {
  const OpTable& host_ops = *FindBackend("portable");  // the reference would take minutes
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    SCOPED_TRACE(absl::StrCat("bytes ", DTypeBytes(dtype)));
    ShadowKvShape shape;
    shape.config.kv_heads = 8;
    shape.heads = 8;
    shape.config.head_dim = 128;
    shape.config.rank = 160;
    shape.config.dtype = dtype;
    shape.key_rank = 200;
    shape.prompt_tokens = 4200;
    const ShadowKvContext host(host_ops, 2, shape);
    const ShadowKvProblem problem(host_ops, *host, shape);
    const absl::StatusOr<std::unique_ptr<DeviceQueue>> queue =
        DeviceQueue::Create(ops().shadowkv_workspace_bytes(1, SizesOf(shape)));
    ASSERT_TRUE(queue.ok()) << queue.status();
    ExecContext large = context();
    large.queue = queue->get();
    const std::vector<std::byte> prompt = DeviceShadowKvPrompt(problem).Encode(ops(), large);
    ASSERT_NO_FATAL_FAILURE(ExpectProjections(problem, prompt));
    const double least = LeftOut(problem, BasisOf(problem.layout(), problem.prompt()));
    EXPECT_LE(LeftOut(problem, BasisOf(problem.layout(), prompt.data())),
              1.01 * least + Rounding(dtype));
  }
}

TEST_F(ShadowKvEncodeGpuTest, GivesTheSameBytesEveryTime) {
  ShadowKvShape shape;
  shape.config.kv_heads = 3;
  shape.heads = 3;
  shape.config.rank = 30;
  shape.config.selector = ShadowKvSelector::kQ2;
  shape.config.value_clusters = 7;
  const ShadowKvContext host(ReferenceOps(), 1, shape);
  const ShadowKvProblem problem(ReferenceOps(), *host, shape);
  const DeviceShadowKvPrompt device(problem);
  EXPECT_EQ(device.Encode(ops(), context()), device.Encode(ops(), context()));
}

TEST_F(ShadowKvEncodeGpuTest, KeysOfZeroGiveNoNan) {
  ShadowKvShape shape;
  shape.config.kv_heads = 3;
  shape.heads = 3;
  shape.config.outlier_chunks = 2;
  const ShadowKvContext host(ReferenceOps(), 1, shape);
  const ShadowKvProblem problem(ReferenceOps(), *host, shape);
  const DeviceShadowKvPrompt device(problem);
  device.ClearPages();
  const std::vector<std::byte> prompt = device.Encode(ops(), context());
  for (const float x : BasisOf(problem.layout(), prompt.data())) {
    ASSERT_TRUE(std::isfinite(x));
  }
}

TEST_F(ShadowKvEncodeGpuTest, AsksForNoMoreWorkspaceThanItSays) {
  for (const int32_t rank : {8, 30, 100}) {
    ShadowKvShape shape;
    shape.config.kv_heads = 3;
    shape.heads = 3;
    shape.config.rank = rank;
    const ShadowKvContext host(ReferenceOps(), 1, shape);
    const ShadowKvProblem problem(ReferenceOps(), *host, shape);
    const DeviceShadowKvPrompt device(problem);
    shape.config.rank = 128;  // of another sequence
    for (const size_t missing : {size_t{0}, size_t{1} << 20}) {
      const size_t bytes = ops().shadowkv_workspace_bytes(1, SizesOf(shape));
      const absl::StatusOr<std::unique_ptr<DeviceQueue>> queue =
          DeviceQueue::Create(missing == 0 ? bytes : bytes / 16);
      ASSERT_TRUE(queue.ok()) << queue.status();
      ExecContext limited = context();
      limited.queue = queue->get();
      const absl::Status status = ops().shadowkv_encode(limited, device.params());
      EXPECT_EQ(status.code(),
                missing == 0 ? absl::StatusCode::kOk : absl::StatusCode::kResourceExhausted)
          << status;
      EXPECT_TRUE((*queue)->Wait().ok());
    }
  }
}

TEST_F(ShadowKvEncodeGpuTest, RefusesWhatItCannotCode) {
  const ShadowKvShape shape;
  const ShadowKvContext host(ReferenceOps(), 1, shape);
  const ShadowKvProblem problem(ReferenceOps(), *host, shape);
  const DeviceShadowKvPrompt device(problem);
  const auto code = [&](const auto& change) {
    ShadowKvEncodeParams params = device.params();
    change(params);
    return ops().shadowkv_encode(context(), params).code();
  };
  using P = ShadowKvEncodeParams;
  const absl::StatusCode bad = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(code([](P&) {}), absl::StatusCode::kOk);
  EXPECT_EQ(code([](P& p) { p.layout.config.rank = 0; }), bad);
  EXPECT_EQ(code([](P& p) { p.layout.config.chunk_tokens = 3; }), bad);
  EXPECT_EQ(code([](P& p) { p.pages.layout.dtype = DType::kF32; }), bad);
  EXPECT_EQ(code([](P& p) { p.rope.positions = 399; }), bad);
  EXPECT_EQ(code([](P& p) { p.prompt = nullptr; }), bad);
  EXPECT_EQ(code([](P& p) { p.prompt += 16; }), bad);
}

}  // namespace
}  // namespace baton::kernels::cuda
