#include "common/checkpoint/read_tensors.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint.h"
#include "kernels/core/dtype.h"
#include "kernels/core/thread_pool.h"

namespace baton::checkpoint {
namespace {

constexpr size_t kPartBytes = size_t{1} << 20;

struct Part {
  const TensorRead* read;
  size_t offset;  // in the target
};

std::vector<Part> PartsOf(std::span<const TensorRead> reads) {
  std::vector<Part> parts;
  for (const TensorRead& read : reads) {
    size_t offset = 0;
    do {  // of no bytes too: its name and shape are checked
      parts.push_back({.read = &read, .offset = offset});
      offset += kPartBytes;
    } while (offset < read.target.size());
  }
  return parts;
}

absl::Status ReadOne(const Checkpoint& checkpoint, const Part& part) {
  const TensorRead& read = *part.read;
  const size_t bytes = std::min(kPartBytes, read.target.size() - part.offset);
  return checkpoint.ReadPart(read.name,
                             read.shape,
                             read.dtype,
                             static_cast<int64_t>(part.offset / kernels::DTypeBytes(read.dtype)),
                             read.target.subspan(part.offset, bytes));
}

}  // namespace

absl::Status ReadTensors(const Checkpoint& checkpoint,
                         std::span<const TensorRead> reads,
                         kernels::ThreadPool& pool) {
  const std::vector<Part> parts = PartsOf(reads);
  std::vector<absl::Status> statuses(parts.size());
  pool.ParallelFor(static_cast<int64_t>(parts.size()), [&](int64_t i, int) {
    const auto index = static_cast<size_t>(i);
    statuses[index] = ReadOne(checkpoint, parts[index]);
  });
  for (absl::Status& status : statuses) {
    BATON_RETURN_IF_ERROR(std::move(status));
  }
  return absl::OkStatus();
}

}  // namespace baton::checkpoint
