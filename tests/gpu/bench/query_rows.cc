#include "tests/gpu/bench/query_rows.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "common/base/status_macros.h"
#include "kernels/core/half.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "tests/gpu/bench/bench_case.h"
#include "tests/gpu/bench/device_arena.h"
#include "tests/gpu/bench/fill.h"
#include "tests/gpu/bench/relative_difference.h"

namespace baton::kernels::cuda {
namespace {

constexpr uint32_t kSeed = 20240522;

std::vector<float> Widened(const std::vector<uint16_t>& bits) {
  std::vector<float> values(bits.size());
  std::transform(bits.begin(), bits.end(), values.begin(), BF16ToF32);
  return values;
}

}  // namespace

absl::Status QueryRows::Allocate(const DeviceQueue& queue, const BenchShape& shape) {
  heads_ = int64_t{shape.kv_heads} * shape.group;
  width_ = heads_ * shape.head_dim;
  scale_ = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  const int64_t count = shape.rows * width_;
  q_ = arena_.Allocate<uint16_t>(count);
  out_ = arena_.Allocate<uint16_t>(count);
  BATON_RETURN_IF_ERROR(arena_.status());
  return FillBf16(queue, q_, count, 2.0f, kSeed);
}

absl::StatusOr<std::vector<float>> QueryRows::Query(int32_t row) const {
  BATON_ASSIGN_OR_RETURN(const std::vector<uint16_t> bits, Downloaded(q(row), width_));
  return Widened(bits);
}

absl::StatusOr<double> QueryRows::Difference(int32_t row, const std::vector<float>& want) const {
  BATON_ASSIGN_OR_RETURN(const std::vector<uint16_t> bits, Downloaded(out(row), width_));
  return RelativeDifference(Widened(bits), want);
}

}  // namespace baton::kernels::cuda
