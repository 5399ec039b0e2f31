#include "tests/golden/compare.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "gtest/gtest.h"

namespace baton::golden {
namespace {

template <typename T>
std::vector<T> Read(const checkpoint::SafetensorsFile& file,
                    const std::string& name,
                    kernels::DType dtype) {
  const absl::StatusOr<checkpoint::TensorView> view = file.View(name);
  if (!view.ok() || view->dtype != dtype) {
    ADD_FAILURE() << name << ": " << view.status();
    return {};
  }
  std::vector<T> values(view->bytes.size() / sizeof(T));
  std::memcpy(values.data(), view->bytes.data(), view->bytes.size());
  return values;
}

}  // namespace

double RelativeError(std::span<const float> actual, std::span<const float> expected) {
  EXPECT_EQ(actual.size(), expected.size());
  double largest = 0;
  double difference = 0;
  for (size_t i = 0; i < std::min(actual.size(), expected.size()); ++i) {
    largest = std::max(largest, std::abs(double{expected[i]}));
    difference = std::max(difference, std::abs(double{expected[i]} - double{actual[i]}));
  }
  return difference / largest;
}

void ExpectMatchesGolden(std::span<const float> actual,
                         std::span<const float> expected,
                         const std::string& what) {
  const double error = RelativeError(actual, expected);
  std::printf("golden %s: max error %.2e of max value\n", what.c_str(), error);
  EXPECT_LE(error, kMaxRelativeError) << what;
}

std::vector<float> ReadFloats(const checkpoint::SafetensorsFile& file, const std::string& name) {
  return Read<float>(file, name, kernels::DType::kF32);
}

std::vector<int32_t> ReadInts(const checkpoint::SafetensorsFile& file, const std::string& name) {
  return Read<int32_t>(file, name, kernels::DType::kI32);
}

}  // namespace baton::golden
