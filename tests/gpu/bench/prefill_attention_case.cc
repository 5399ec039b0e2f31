#include "tests/gpu/bench/prefill_attention_case.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

#include "common/base/status_macros.h"
#include "kernels/core/buffer.h"
#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/half.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/ops/params.h"
#include "tests/gpu/bench/device_arena.h"
#include "tests/gpu/bench/fill.h"
#include "tests/gpu/bench/host_context.h"
#include "tests/gpu/bench/relative_difference.h"
#include "tests/gpu/bench/timer.h"

namespace baton::kernels::cuda {
namespace {

constexpr uint32_t kSeed = 20240524;
// Room for copies of the longest prompt's keys and values.
constexpr size_t kWorkspaceBytes = size_t{640} << 20;
// The rounding of results to bf16 alone is up to 4e-3 of the largest.
constexpr double kTolerance = 8e-3;
constexpr int32_t kRepeats = 5;
// Calls of a repeat are as many as come to these operations, but no more than kMostCalls.
constexpr double kRepeatOperations = 2e14;
constexpr double kMostCalls = 64;

struct Result {
  double error = 0.0;
  double seconds = 0.0;  // of a call
};

std::vector<PrefillShape> AllShapes(bool quick) {
  std::vector<PrefillShape> shapes = {{.rows = 2048, .tokens = 2048},
                                      {.rows = 8192, .tokens = 8192},
                                      {.rows = 2048, .tokens = 32768}};
  if (!quick) {
    shapes.insert(shapes.end(),
                  {{.rows = 512, .tokens = 512},
                   {.rows = 32768, .tokens = 32768},
                   {.rows = 131072, .tokens = 131072},
                   {.sequences = 16, .rows = 512, .tokens = 512},
                   {.sequences = 8, .rows = 2048, .tokens = 2048},
                   {.rows = 2048, .tokens = 131072},
                   {.rows = 8192, .tokens = 8192, .page_tokens = 16},
                   {.rows = 8192, .tokens = 8192, .page_tokens = 64},
                   {.rows = 8192, .tokens = 8192, .page_tokens = 24},
                   {.rows = 2048, .tokens = 131072, .page_tokens = 24}});
  }
  return shapes;
}

// The first repeat warms up: it compiles the plan.
absl::StatusOr<double> Time(const ExecContext& context, PrefillAttentionCase& bench) {
  const auto calls =
      static_cast<int32_t>(std::clamp(kRepeatOperations / bench.operations(), 1.0, kMostCalls));
  std::vector<double> seconds;
  for (int32_t repeat = 0; repeat <= kRepeats; ++repeat) {
    const Timer timer(*context.queue);
    for (int32_t call = 0; call < calls; ++call) {
      BATON_RETURN_IF_ERROR(bench.Run(context));
    }
    const double taken = timer.Seconds();
    if (repeat > 0) {
      seconds.push_back(taken / calls);
    }
  }
  BATON_RETURN_IF_ERROR(context.queue->Wait());
  const auto median = seconds.begin() + kRepeats / 2;
  std::nth_element(seconds.begin(), median, seconds.end());
  return *median;
}

absl::StatusOr<Result> CheckAndTime(const ExecContext& context, PrefillAttentionCase& bench) {
  Result result;
  BATON_RETURN_IF_ERROR(bench.Prepare(*context.queue));
  BATON_ASSIGN_OR_RETURN(result.error, bench.Error(context));
  if (!(result.error <= kTolerance)) {  // NaN, too
    return absl::InternalError(absl::StrCat("differs from the CPU back end by ", result.error));
  }
  BATON_ASSIGN_OR_RETURN(result.seconds, Time(context, bench));
  return result;
}

void PrintRow(const PrefillAttentionCase& bench, const absl::StatusOr<Result>& result) {
  const PrefillShape& shape = bench.shape();
  absl::PrintF(
      "{\"op\":\"paged_attention\",\"sequences\":%d,\"rows\":%d,\"tokens\":%d,\"page_tokens\":%d",
      shape.sequences,
      shape.rows,
      shape.tokens,
      shape.page_tokens);
  if (result.ok()) {
    const double rate = bench.operations() / result->seconds;
    absl::PrintF(",\"error\":%.2e,\"us\":%.2f,\"tflop_per_s\":%.2f,\"share_of_596\":%.3f}\n",
                 result->error,
                 result->seconds * 1e6,
                 rate * 1e-12,
                 rate / 596e12);
  } else {
    absl::PrintF(",\"failed\":\"%s\"}\n",
                 absl::StrReplaceAll(result.status().ToString(),
                                     {{"\\", "\\\\"}, {"\"", "\\\""}, {"\n", " "}}));
  }
  std::fflush(stdout);
}

std::vector<float> Widened(const std::vector<uint16_t>& bits) {
  std::vector<float> values(bits.size());
  std::transform(bits.begin(), bits.end(), values.begin(), BF16ToF32);
  return values;
}

}  // namespace

PrefillAttentionCase::PrefillAttentionCase(const PrefillShape& shape)
    : shape_(shape),
      layout_({.page_tokens = shape.page_tokens,
               .kv_heads = kKvHeads,
               .head_dim = kHeadDim,
               .dtype = DType::kBF16}) {}

absl::Status PrefillAttentionCase::Prepare(const DeviceQueue& queue) {
  tables_.resize(static_cast<size_t>(shape_.sequences) * static_cast<size_t>(table_entries()));
  std::iota(tables_.begin(), tables_.end(), 0);
  std::shuffle(tables_.begin(), tables_.end(), std::mt19937(kSeed));
  const auto bytes = static_cast<int64_t>(tables_.size() * layout_.stride_bytes());
  pages_ = arena_.Allocate<std::byte>(bytes);
  q_ = arena_.Allocate<uint16_t>(all_rows() * kQueryStride);
  out_ = arena_.Allocate<uint16_t>(all_rows() * kWidth);
  BATON_RETURN_IF_ERROR(UploadSequences());
  BATON_RETURN_IF_ERROR(FillBf16(queue, pages_, bytes / 2, 2.0f, kSeed));
  BATON_RETURN_IF_ERROR(FillBf16(queue, q_, all_rows() * kQueryStride, 2.0f, kSeed + 1));
  return queue.Wait();
}

absl::Status PrefillAttentionCase::UploadSequences() {
  const int32_t* tables = arena_.Upload(tables_);
  std::vector<int32_t> positions;
  std::vector<SequenceRows> sequences;
  for (int32_t s = 0; s < shape_.sequences; ++s) {
    sequences.push_back({.row_begin = s * shape_.rows,
                         .row_count = shape_.rows,
                         .page_table = tables + int64_t{s} * table_entries()});
    for (int32_t row = 0; row < shape_.rows; ++row) {
      positions.push_back(shape_.tokens - shape_.rows + row);
    }
  }
  positions_ = arena_.Upload(positions);
  sequences_ = arena_.Upload(sequences);
  return arena_.status();
}

PagedAttentionParams PrefillAttentionCase::Params() const {
  PagedAttentionParams params;
  params.q_stride = kQueryStride;
  params.out_stride = kWidth;
  params.heads = kHeads;
  params.scale = 1.0f / std::sqrt(static_cast<float>(kHeadDim));
  return params;
}

absl::Status PrefillAttentionCase::Run(const ExecContext& context) {
  PagedAttentionParams params = Params();
  params.q = q_;
  params.out = out_;
  params.positions = positions_;
  params.sequences = sequences_;
  params.num_sequences = shape_.sequences;
  params.pages = {.base = pages_, .layout = layout_};
  params.rows = all_rows();
  params.max_sequence_rows = shape_.rows;
  params.max_keys = shape_.tokens;
  params.whole_keys = true;
  return CudaOps()->paged_attention(context, params);
}

absl::StatusOr<double> PrefillAttentionCase::Error(const ExecContext& context) {
  BATON_RETURN_IF_ERROR(Run(context));
  BATON_RETURN_IF_ERROR(context.queue->Wait());
  Buffer pages(static_cast<size_t>(table_entries()) * layout_.stride_bytes());
  const int32_t* table = tables_.data() + int64_t{shape_.sequences - 1} * table_entries();
  for (int32_t i = 0; i < table_entries(); ++i) {
    BATON_RETURN_IF_ERROR(
        CopyToHost(pages.data() + static_cast<size_t>(i) * layout_.stride_bytes(),
                   pages_ + static_cast<size_t>(table[i]) * layout_.stride_bytes(),
                   layout_.page_bytes()));
  }
  BATON_ASSIGN_OR_RETURN(const double inside, RowError(shape_.rows / 3, pages.data()));
  BATON_ASSIGN_OR_RETURN(const double last, RowError(shape_.rows - 1, pages.data()));
  return std::isnan(last) ? last : std::max(inside, last);  // a NaN stays
}

absl::StatusOr<double> PrefillAttentionCase::RowError(int32_t row, std::byte* pages) const {
  const int64_t packed = all_rows() - shape_.rows + row;
  BATON_ASSIGN_OR_RETURN(const std::vector<uint16_t> q_bits,
                         Downloaded(q_ + packed * kQueryStride, kWidth));
  BATON_ASSIGN_OR_RETURN(const std::vector<uint16_t> out_bits,
                         Downloaded(out_ + packed * kWidth, kWidth));
  const std::vector<float> q = Widened(q_bits);
  const std::vector<float> got = Widened(out_bits);
  std::vector<float> want(got.size());
  std::vector<int32_t> table(static_cast<size_t>(table_entries()));
  std::iota(table.begin(), table.end(), 0);
  const int32_t position = shape_.tokens - shape_.rows + row;
  const SequenceRows sequence = {.row_begin = 0, .row_count = 1, .page_table = table.data()};
  PagedAttentionParams params = Params();
  params.q = q.data();
  params.out = want.data();
  params.positions = &position;
  params.sequences = &sequence;
  params.num_sequences = 1;
  params.pages = {.base = pages, .layout = layout_};
  HostContext host;
  BATON_RETURN_IF_ERROR(CpuOps().paged_attention(host.get(), params));
  return RelativeDifference(got, want);
}

double PrefillAttentionCase::operations() const {
  const double keys = shape_.tokens - (shape_.rows - 1) / 2.0;  // of a row, on average
  return 4.0 * kWidth * static_cast<double>(all_rows()) * keys;
}

absl::StatusOr<bool> MeasurePrefillAttention(bool quick) {
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<DeviceQueue> queue,
                         DeviceQueue::Create(kWorkspaceBytes));
  const ExecContext context = {.queue = queue.get()};
  bool measured = true;
  for (const PrefillShape& shape : AllShapes(quick)) {
    PrefillAttentionCase bench(shape);
    const absl::StatusOr<Result> result = CheckAndTime(context, bench);
    PrintRow(bench, result);
    measured = measured && result.ok();
  }
  return measured;
}

}  // namespace baton::kernels::cuda
