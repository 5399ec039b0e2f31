// Reads tensors by all threads of a pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "common/checkpoint/checkpoint.h"
#include "kernels/core/dtype.h"
#include "kernels/core/thread_pool.h"

namespace baton::checkpoint {

// A whole tensor and where it goes, as Checkpoint::ReadPart takes them.
struct TensorRead {
  std::string name;
  std::vector<int64_t> shape;
  kernels::DType dtype = kernels::DType::kBF16;
  std::span<std::byte> target;
};

// Reads all of them, in parts of about a MiB that the threads take in turn: what takes the time of
// a start is pages that come from a file, memory that is touched for the first time, and
// conversion. The error is that of the first part, in their order, that has one. Belongs to the
// thread that the pool belongs to.
absl::Status ReadTensors(const Checkpoint& checkpoint,
                         std::span<const TensorRead> reads,
                         kernels::ThreadPool& pool);

}  // namespace baton::checkpoint
