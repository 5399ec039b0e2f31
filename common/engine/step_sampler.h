// The tokens of a step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"

#include "common/engine/sampling/sampler.h"
#include "common/engine/sampling/top_logits.h"
#include "common/engine/step.h"
#include "common/model/model.h"
#include "kernels/core/buffer.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/memory.h"
#include "kernels/ops/op_table.h"

namespace baton::engine {

// Draws the tokens of a step from what its forward pass leaves. On a device that is a list of the
// most likely tokens of every row; whole rows, half a megabyte each for a vocabulary of 128K, come
// to the host only for draws that need them (TopLogitsNeeded). Executor thread; everything is
// borrowed.
class StepSampler {
 public:
  StepSampler(const model::Model& model,
              const kernels::OpTable& ops,
              const kernels::ExecContext& exec)
      : model_(model),
        ops_(ops),
        exec_(exec),
        scratch_(static_cast<size_t>(exec.pool->threads())) {}

  // Where the forward pass of `step` is to write its logits: empty on a device, and of a model that
  // has none.
  std::span<float> HostLogits(const Step& step);
  // Fills in the output of every sample, once the forward pass has run. An error is of the device;
  // one of a draw is in its output.
  absl::Status Draw(Step& step);

 private:
  // What top_logits writes of the rows of a step: in memory of the device, or on the host.
  struct TopArrays {
    int32_t count = 0;
    int32_t* ids = nullptr;     // [rows, count]
    float* values = nullptr;    // [rows, count]
    float* log_sums = nullptr;  // [rows]
    size_t bytes = 0;           // of all of them
  };

  static TopArrays Carve(std::byte* base, int64_t rows, int32_t count);
  // Memory for so many rows of logits.
  std::span<float> HostRows(size_t rows);
  std::span<const float> HostRow(int32_t row) const;
  size_t vocab() const { return static_cast<size_t>(model_.config().vocab_size); }
  // Brings to the host what the draws of a step look at.
  absl::Status Fetch(Step& step);
  absl::Status FetchTop(int64_t rows, int32_t count);
  absl::Status FetchRows(const std::vector<bool>& rows);
  TopLogits TopOf(int32_t row) const;

  const model::Model& model_;
  const kernels::OpTable& ops_;
  const kernels::ExecContext& exec_;
  std::vector<SamplerScratch> scratch_;  // one per compute thread
  kernels::Buffer logits_;
  kernels::Memory device_top_;
  kernels::Buffer host_top_;
  TopArrays top_;  // in host_top_
};

}  // namespace baton::engine
