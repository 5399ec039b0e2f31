#include "tests/kernels/support/backends.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "kernels/core/half.h"
#include "kernels/select.h"

namespace baton::kernels {

const std::vector<std::string> kBackends = {"reference", "portable", "avx2", "avx512"};
const std::vector<std::string> kCpuBackends = {"portable", "avx2", "avx512"};

const OpTable* FindBackend(const std::string& name) {
  if (name == "portable") {
    return CpuOpsFor(CpuIsa::kPortable);
  }
  if (name == "avx2") {
    return CpuOpsFor(CpuIsa::kAvx2);
  }
  if (name == "avx512") {
    return CpuOpsFor(CpuIsa::kAvx512);
  }
  return &ReferenceOps();
}

TestContext::TestContext(const OpTable& ops, int threads, size_t least_workspace)
    : pool_(threads),
      workspace_(std::max(ops.workspace_bytes(threads, 1 << 16, 512), least_workspace)) {
  context_.pool = &pool_;
  context_.workspace = &workspace_;
}

void BackendTest::SetUp() {
  ops_ = FindBackend(GetParam());
  if (ops_ == nullptr) {
    GTEST_SKIP() << "this machine has no " << GetParam();
  }
}

uint32_t TestSeed() {
  const char* text = std::getenv("BATON_TEST_SEED");
  return text == nullptr ? 20240521u : static_cast<uint32_t>(std::strtoul(text, nullptr, 10));
}

std::string SeedMessage() {
  const std::string seed = std::to_string(TestSeed());
  return "repeat with BATON_TEST_SEED=" + seed + " ctest -R <this test>";
}

std::vector<float> RandomFloats(size_t count, float scale) {
  static std::mt19937 random(TestSeed());
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(count);
  std::generate(values.begin(), values.end(), [&] { return normal(random); });
  return values;
}

std::vector<std::byte> Encode(std::span<const float> values, DType dtype) {
  std::vector<std::byte> bytes(values.size() * DTypeBytes(dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::kF32) {
      std::memcpy(bytes.data() + 4 * i, &values[i], 4);
    } else {
      const uint16_t bits = F32ToBF16(values[i]);
      std::memcpy(bytes.data() + 2 * i, &bits, 2);
    }
  }
  return bytes;
}

std::vector<float> RoundedTo(std::span<const float> values, DType dtype) {
  std::vector<float> rounded(values.begin(), values.end());
  if (dtype == DType::kBF16) {
    for (float& value : rounded) {
      value = BF16ToF32(F32ToBF16(value));
    }
  }
  return rounded;
}

PackedWeight::PackedWeight(const OpTable& ops,
                           const ExecContext& context,
                           std::span<const float> values,
                           int64_t out_features,
                           int64_t in_features,
                           DType dtype)
    : bytes(ops.packed_matrix_bytes(out_features, in_features, dtype)) {
  const std::vector<std::byte> source = Encode(values, dtype);
  const absl::Status status = ops.pack_matrix(context,
                                              {.source = source.data(),
                                               .out_features = out_features,
                                               .in_features = in_features,
                                               .dtype = dtype,
                                               .target = bytes.data()});
  EXPECT_TRUE(status.ok()) << status;
  matrix = {.data = bytes.data(),
            .out_features = out_features,
            .in_features = in_features,
            .dtype = dtype};
}

void ExpectNear(std::span<const float> got, std::span<const float> want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  double magnitude = 1.0;
  for (const float value : want) {
    magnitude = std::max(magnitude, std::fabs(double{value}));
  }
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], want[i], tolerance * magnitude) << "element " << i << "; " << SeedMessage();
  }
}

void ExpectSameBits(std::span<const float> got, std::span<const float> want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(want[i]))
        << "element " << i << ": " << got[i] << " and " << want[i] << "; " << SeedMessage();
  }
}

}  // namespace baton::kernels
