#include "common/engine/step_sampler.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"

#include "common/base/status_macros.h"
#include "common/engine/sampling/any_token.h"
#include "common/engine/sampling/sampler.h"
#include "common/engine/sampling/top_logits.h"
#include "common/engine/step.h"
#include "kernels/core/buffer.h"
#include "kernels/core/carver.h"

namespace baton::engine {
namespace {

std::optional<int32_t> Needed(const SampleJob& job) {
  return TopLogitsNeeded(*job.input.params, job.input.generated_tokens);
}

}  // namespace

std::span<float> StepSampler::HostRows(size_t rows) {
  const size_t bytes = rows * vocab() * sizeof(float);
  if (logits_.size() < bytes) {
    logits_ = kernels::Buffer(std::max(bytes, 2 * logits_.size()));
  }
  return {logits_.as<float>(), rows * vocab()};
}

std::span<float> StepSampler::HostLogits(const Step& step) {
  return exec_.memory->is_host() && model_.has_logits() ? HostRows(step.logit_rows.size())
                                                        : std::span<float>();
}

absl::Status StepSampler::Draw(Step& step) {
  if (!model_.has_logits()) {
    for (SampleJob& job : step.samples) {
      job.output = DrawAnyToken(job.input, model_.config().vocab_size);
    }
    return absl::OkStatus();
  }
  if (exec_.memory->is_host()) {
    for (SampleJob& job : step.samples) {
      job.input.logits = HostRow(job.logit_row);
    }
  } else {
    BATON_RETURN_IF_ERROR(Fetch(step));
  }
  exec_.pool->ParallelFor(
      static_cast<int64_t>(step.samples.size()), [&](int64_t index, int thread) {
        SampleJob& job = step.samples[static_cast<size_t>(index)];
        job.output = SampleToken(job.input, scratch_[static_cast<size_t>(thread)]);
      });
  return absl::OkStatus();
}

absl::Status StepSampler::Fetch(Step& step) {
  int32_t count = 0;
  std::vector<bool> whole(step.logit_rows.size());
  for (const SampleJob& job : step.samples) {
    const std::optional<int32_t> needed = Needed(job);
    count = std::max(count, needed.value_or(0));
    whole[static_cast<size_t>(job.logit_row)] = !needed.has_value();
  }
  if (count > 0) {
    BATON_RETURN_IF_ERROR(FetchTop(static_cast<int64_t>(whole.size()), count));
  }
  BATON_RETURN_IF_ERROR(FetchRows(whole));
  for (SampleJob& job : step.samples) {
    if (whole[static_cast<size_t>(job.logit_row)]) {
      job.input.logits = HostRow(job.logit_row);
    } else {
      job.input.top = TopOf(job.logit_row);
    }
  }
  return absl::OkStatus();
}

StepSampler::TopArrays StepSampler::Carve(std::byte* base, int64_t rows, int32_t count) {
  kernels::Carver carver(base);
  TopArrays arrays = {.count = count,
                      .ids = carver.Take<int32_t>(rows * count),
                      .values = carver.Take<float>(rows * count),
                      .log_sums = carver.Take<float>(rows)};
  arrays.bytes = carver.used();
  return arrays;
}

absl::Status StepSampler::FetchTop(int64_t rows, int32_t count) {
  const size_t bytes = Carve(nullptr, rows, count).bytes;
  if (host_top_.size() < bytes) {
    BATON_ASSIGN_OR_RETURN(device_top_, exec_.memory->Allocate(2 * bytes));
    host_top_ = kernels::Buffer(2 * bytes);
  }
  const TopArrays device = Carve(device_top_.data(), rows, count);
  BATON_RETURN_IF_ERROR(ops_.top_logits(exec_,
                                        {.logits = model_.device_logits(),
                                         .rows = rows,
                                         .vocab = static_cast<int64_t>(vocab()),
                                         .count = count,
                                         .ids = device.ids,
                                         .values = device.values,
                                         .log_sums = device.log_sums}));
  top_ = Carve(host_top_.as<std::byte>(), rows, count);
  return exec_.memory->Download(host_top_.data(), device_top_.data(), bytes);
}

// Rows side by side come at once.
absl::Status StepSampler::FetchRows(const std::vector<bool>& rows) {
  auto begin = std::find(rows.begin(), rows.end(), true);
  if (begin == rows.end()) {
    return absl::OkStatus();
  }
  const std::span<float> target = HostRows(rows.size());
  while (begin != rows.end()) {
    const auto end = std::find(begin, rows.end(), false);
    const size_t first = static_cast<size_t>(begin - rows.begin()) * vocab();
    const size_t count = static_cast<size_t>(end - begin) * vocab();
    BATON_RETURN_IF_ERROR(exec_.memory->Download(
        target.data() + first, model_.device_logits() + first, count * sizeof(float)));
    begin = std::find(end, rows.end(), true);
  }
  return absl::OkStatus();
}

std::span<const float> StepSampler::HostRow(int32_t row) const {
  return {logits_.as<float>() + static_cast<size_t>(row) * vocab(), vocab()};
}

TopLogits StepSampler::TopOf(int32_t row) const {
  const auto count = static_cast<size_t>(top_.count);
  const size_t begin = static_cast<size_t>(row) * count;
  const std::span<const int32_t> ids(top_.ids + begin, count);
  const auto listed = static_cast<size_t>(std::find(ids.begin(), ids.end(), -1) - ids.begin());
  return {.ids = ids.first(listed),
          .values = {top_.values + begin, listed},
          .log_sum = top_.log_sums[row]};
}

}  // namespace baton::engine
