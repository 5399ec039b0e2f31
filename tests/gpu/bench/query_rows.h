// Queries and results of decode attention on the device.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/cuda/runtime/device_queue.h"
#include "tests/gpu/bench/bench_case.h"
#include "tests/gpu/bench/device_arena.h"

namespace baton::kernels::cuda {

// One query of all heads for every row of a shape, in bf16.
class QueryRows {
 public:
  // Gives the queue the work of filling the queries.
  absl::Status Allocate(const DeviceQueue& queue, const BenchShape& shape);

  int64_t heads() const { return heads_; }
  int64_t width() const { return width_; }  // elements of a row
  float scale() const { return scale_; }    // of scores
  const uint16_t* q(int32_t row) const { return q_ + row * width_; }
  uint16_t* out(int32_t row) const { return out_ + row * width_; }

  // The query of a row as fp32 on the host.
  absl::StatusOr<std::vector<float>> Query(int32_t row) const;
  // The largest difference of a row's results from `want`, relative to the largest of `want`; NaN
  // when there is one in the results. The queue must be done.
  absl::StatusOr<double> Difference(int32_t row, const std::vector<float>& want) const;

 private:
  DeviceArena arena_;
  int64_t heads_ = 0;
  int64_t width_ = 0;
  float scale_ = 0.0f;
  uint16_t* q_ = nullptr;
  uint16_t* out_ = nullptr;
};

}  // namespace baton::kernels::cuda
