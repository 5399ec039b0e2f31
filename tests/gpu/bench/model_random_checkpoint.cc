#include "tests/gpu/bench/model_random_checkpoint.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "common/checkpoint/convert.h"
#include "common/checkpoint/fingerprint.h"
#include "common/checkpoint/model_config.h"
#include "common/checkpoint/random_weights.h"
#include "common/checkpoint/tensor_view.h"
#include "kernels/core/buffer.h"
#include "kernels/core/dtype.h"
#include "kernels/core/thread_pool.h"

namespace baton::model {
namespace {

// Elements of a block: few enough that its fp32 values stay in a core's cache.
constexpr int64_t kBlockElements = 1 << 16;

uint64_t FingerprintOf(const checkpoint::ModelConfig& config, uint64_t seed) {
  checkpoint::Fingerprint fingerprint;
  fingerprint.Add(config);
  fingerprint.Add("seed of random blocks", seed);
  return fingerprint.Digest();
}

}  // namespace

ThreadedRandomCheckpoint::ThreadedRandomCheckpoint(checkpoint::ModelConfig config,
                                                   uint64_t seed,
                                                   kernels::ThreadPool& pool)
    : config_(std::move(config)),
      seed_(seed),
      fingerprint_(FingerprintOf(config_, seed)),
      pool_(pool) {}

absl::StatusOr<checkpoint::TensorView> ThreadedRandomCheckpoint::View(std::string_view name) const {
  return absl::FailedPreconditionError(
      absl::StrCat("tensor `", std::string(name), "` is random and not stored"));
}

absl::StatusOr<kernels::Buffer> ThreadedRandomCheckpoint::Read(std::string_view name,
                                                               std::span<const int64_t> shape,
                                                               kernels::DType dtype) const {
  const int64_t rows = shape.front();
  const int64_t columns = shape.size() > 1 ? shape[1] : 1;
  const int64_t block_rows = std::max<int64_t>(1, kBlockElements / columns);
  const int64_t blocks = (rows + block_rows - 1) / block_rows;
  const size_t row_bytes = static_cast<size_t>(columns) * kernels::DTypeBytes(dtype);
  kernels::Buffer tensor(static_cast<size_t>(rows) * row_bytes);
  std::vector<absl::Status> statuses(static_cast<size_t>(blocks));
  pool_.ParallelFor(blocks, [&](int64_t block, int) {
    const int64_t first = block * block_rows;
    std::vector<int64_t> block_shape(shape.begin(), shape.end());
    block_shape.front() = std::min(block_rows, rows - first);
    std::vector<float> values(static_cast<size_t>(block_shape.front() * columns));
    checkpoint::FillRandomTensor(seed_ + static_cast<uint64_t>(block), name, block_shape, values);
    statuses[static_cast<size_t>(block)] = checkpoint::ConvertTensor(
        {.dtype = kernels::DType::kF32,
         .shape = block_shape,
         .bytes = std::as_bytes(std::span<const float>(values))},
        dtype,
        tensor.bytes().subspan(static_cast<size_t>(first) * row_bytes,
                               static_cast<size_t>(block_shape.front()) * row_bytes));
  });
  for (absl::Status& status : statuses) {
    BATON_RETURN_IF_ERROR(std::move(status));
  }
  return tensor;
}

}  // namespace baton::model
