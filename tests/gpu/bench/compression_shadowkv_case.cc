#include "tests/gpu/bench/compression_shadowkv_case.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "common/base/status_macros.h"
#include "kernels/core/buffer.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/half.h"
#include "kernels/core/thread_pool.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/shadowkv_params.h"
#include "tests/gpu/bench/compression_case.h"
#include "tests/gpu/bench/device_arena.h"
#include "tests/gpu/bench/shadowkv_load.h"

namespace baton::kernels::cuda {
namespace {

constexpr int kHostThreads = 16;

ShadowKvWorkspaceSizes SizesOf(int32_t tokens) {
  return {.config = ShadowKvConfigOf(CompressionCase::kKvHeads, CompressionCase::kHeadDim),
          .heads = CompressionCase::kHeads,
          .max_tokens = tokens};
}

std::vector<float> Widened(const std::byte* values, int64_t count) {
  const auto* bits = reinterpret_cast<const uint16_t*>(values);
  std::vector<float> widened(static_cast<size_t>(count));
  std::transform(bits, bits + count, widened.begin(), BF16ToF32);
  return widened;
}

double Energy(const float* x, int64_t count) {
  double sum = 0.0;
  for (int64_t i = 0; i < count; ++i) sum += double{x[i]} * double{x[i]};
  return sum;
}

}  // namespace

CompressionShadowKvCase::CompressionShadowKvCase(int32_t tokens)
    : CompressionCase("shadowkv_encode", tokens),
      prompt_(tokens),
      layout_(ShadowKvConfigOf(kKvHeads, kHeadDim), tokens) {}

size_t CompressionShadowKvCase::WorkspaceBytes(int32_t tokens) {
  return CudaOps()->shadowkv_workspace_bytes(1, SizesOf(tokens));
}

absl::Status CompressionShadowKvCase::Prepare(const ExecContext& context) {
  BATON_RETURN_IF_ERROR(prompt_.Upload(*context.queue));
  sections_ = arena_.Allocate<std::byte>(kLayers * static_cast<int64_t>(layout_.bytes));
  return arena_.status();
}

absl::Status CompressionShadowKvCase::Run(const ExecContext& context, int32_t layer) {
  return CudaOps()->shadowkv_encode(
      context,
      {.layout = layout_,
       .pages = prompt_.pages(),
       .page_table = prompt_.table(layer),
       .rope = prompt_.rope(),
       .prompt = sections_ + layer * static_cast<int64_t>(layout_.bytes)});
}

absl::StatusOr<double> CompressionShadowKvCase::Error(const ExecContext& context) {
  BATON_RETURN_IF_ERROR(Run(context, 0));
  BATON_RETURN_IF_ERROR(context.queue->Wait());
  BATON_ASSIGN_OR_RETURN(const std::vector<std::byte> got,
                         Downloaded(sections_, static_cast<int64_t>(layout_.bytes)));
  BATON_ASSIGN_OR_RETURN(const std::vector<std::byte> want, OnHost());
  const double factors = std::fabs(LeftOut(got) - LeftOut(want));
  return std::isnan(factors) ? factors : std::max(factors, ShareOfDifferent(got, want));
}

absl::StatusOr<std::vector<std::byte>> CompressionShadowKvCase::OnHost() {
  ThreadPool threads(kHostThreads);
  Buffer workspace(std::max(CpuOps().workspace_bytes(kHostThreads, kWidth, kHeadDim),
                            CpuOps().shadowkv_workspace_bytes(kHostThreads, SizesOf(tokens()))));
  Buffer section(layout_.bytes);
  BATON_RETURN_IF_ERROR(CpuOps().shadowkv_encode({.pool = &threads, .workspace = &workspace},
                                                 {.layout = layout_,
                                                  .pages = prompt_.host_pages(),
                                                  .page_table = prompt_.host_table(),
                                                  .rope = prompt_.host_rope(),
                                                  .prompt = section.data()}));
  return std::vector<std::byte>(section.bytes().begin(), section.bytes().end());
}

double CompressionShadowKvCase::LeftOut(const std::vector<std::byte>& section) const {
  const int64_t rank = layout_.config.rank;
  const std::vector<float> basis = Widened(section.data() + layout_.basis, rank * kWidth);
  const std::vector<float> coefficients =
      Widened(section.data() + layout_.coded_begin + layout_.coded.coefficients,
              layout_.coded.tokens * rank);
  double left = 0.0;
  double all = 0.0;
  for (int64_t token = 0; token < layout_.coded.tokens; ++token) {
    const float* key = prompt_.factored_keys().data() + token * kWidth;
    std::vector<float> rest(key, key + kWidth);
    for (int64_t j = 0; j < rank; ++j) {
      const float coefficient = coefficients[static_cast<size_t>(token * rank + j)];
      const float* row = basis.data() + j * kWidth;
      for (size_t i = 0; i < rest.size(); ++i) rest[i] -= coefficient * row[i];
    }
    left += Energy(rest.data(), kWidth);
    all += Energy(key, kWidth);
  }
  return left / all;
}

double CompressionShadowKvCase::ShareOfDifferent(const std::vector<std::byte>& got,
                                                 const std::vector<std::byte>& want) const {
  const size_t begin = layout_.coded_begin + layout_.coded.landmarks;
  int64_t different = 0;
  for (size_t i = begin; i < want.size(); ++i) different += got[i] == want[i] ? 0 : 1;
  return static_cast<double>(different) / static_cast<double>(want.size() - begin);
}

double CompressionShadowKvCase::bytes() const {
  return 2.0 * sizeof(uint16_t) * kWidth * tokens() + static_cast<double>(layout_.bytes);
}

double CompressionShadowKvCase::operations() const {
  const double gram = double{kWidth} * (kWidth + 1) * tokens();
  return gram + 2.0 * kWidth * layout_.config.rank * static_cast<double>(layout_.coded.tokens);
}

}  // namespace baton::kernels::cuda
