// What a benchmark of the device times: calls of one op on as much memory as a serving worker
// holds.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/core/exec_context.h"
#include "kernels/cuda/runtime/device_queue.h"

namespace baton::kernels::cuda {

// What tells the row of one case from others.
struct BenchShape {
  std::string op = {};       // its name in the op table
  std::string format = {};   // of the KV
  std::string variant = {};  // what else differs; may be empty
  int32_t rows = 1;          // sequences, one query or new token each
  int32_t tokens = 0;        // of a sequence
  int32_t kv_heads = 0;
  int32_t group = 1;  // query heads per KV head
  int32_t head_dim = 128;
};

// A case costs nothing before Prepare and frees its memory when it is destroyed.
class BenchCase {
 public:
  // Layers are taken in turn, as a model takes them, so that little of a large shape is still in a
  // cache when its turn comes.
  static constexpr int32_t kLayers = 4;
  static constexpr int32_t kSteps = 16;  // of a repeat
  static constexpr int32_t kRepeats = 5;
  // The first repeat warms up.
  static constexpr int32_t kAllSteps = (1 + kRepeats) * kSteps;

  explicit BenchCase(BenchShape shape) : shape_(std::move(shape)) {}
  virtual ~BenchCase() = default;
  BenchCase(const BenchCase&) = delete;
  BenchCase& operator=(const BenchCase&) = delete;

  const BenchShape& shape() const { return shape_; }

  // Allocates and fills; waits for the queue. Once, before all that follows.
  virtual absl::Status Prepare(const DeviceQueue& queue) = 0;
  // How far the op is from the CPU back end, relative to the largest value. Called before any step.
  virtual absl::StatusOr<double> Error(const ExecContext& context) = 0;
  // Gives the queue the call of one layer. Steps go from 0 to kAllSteps - 1, layers inside a step.
  virtual absl::Status Run(const ExecContext& context, int32_t layer, int32_t step) = 0;
  // That one call reads at least.
  virtual double bytes() const = 0;
  // Of them, what comes from the host's memory.
  virtual double link_bytes() const { return 0.0; }

 private:
  BenchShape shape_;
};

}  // namespace baton::kernels::cuda
