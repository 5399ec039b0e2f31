#include "tests/gpu/bench/compression_fp8_case.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "common/base/status_macros.h"
#include "kernels/core/buffer.h"
#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/half.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/kv_format/dense.h"
#include "kernels/ops/params.h"
#include "tests/gpu/bench/compression_case.h"
#include "tests/gpu/bench/device_arena.h"
#include "tests/gpu/bench/fill.h"
#include "tests/gpu/bench/host_context.h"

namespace baton::kernels::cuda {
namespace {

constexpr uint32_t kSeed = 20240601;
constexpr int64_t kStride = 2 * CompressionCase::kWidth;

std::vector<int32_t> Positions(int32_t tokens) {
  std::vector<int32_t> positions(static_cast<size_t>(tokens));
  std::iota(positions.begin(), positions.end(), 0);
  return positions;
}

}  // namespace

CompressionFp8Case::CompressionFp8Case(int32_t tokens)
    : CompressionCase("kv_write f8e4m3", tokens),
      layout_({.kv_heads = kKvHeads, .head_dim = kHeadDim, .dtype = DType::kF8E4M3}),
      table_(Positions(layer_pages())) {
  std::shuffle(table_.begin(), table_.end(), std::mt19937(kSeed));
}

absl::Status CompressionFp8Case::Prepare(const ExecContext& context) {
  tokens_ = arena_.Allocate<uint16_t>(kLayers * elements());
  pages_ = arena_.Allocate<std::byte>(kLayers * static_cast<int64_t>(page_bytes()));
  positions_ = arena_.Upload(Positions(tokens()));
  sequence_ = arena_.Upload(std::vector<SequenceRows>{
      {.row_begin = 0, .row_count = tokens(), .page_table = arena_.Upload(table_)}});
  BATON_RETURN_IF_ERROR(arena_.status());
  BATON_RETURN_IF_ERROR(FillBf16(*context.queue, tokens_, kLayers * elements(), 2.0f, kSeed));
  return context.queue->Wait();
}

absl::Status CompressionFp8Case::Run(const ExecContext& context, int32_t layer) {
  const uint16_t* keys = tokens_ + layer * elements();
  std::byte* pages = pages_ + layer * static_cast<int64_t>(page_bytes());
  return CudaOps()->kv_write(context,
                             {.k = keys,
                              .k_stride = kStride,
                              .v = keys + kWidth,
                              .v_stride = kStride,
                              .positions = positions_,
                              .rows = tokens(),
                              .sequences = sequence_,
                              .num_sequences = 1,
                              .pages = {.base = pages, .layout = layout_}});
}

absl::StatusOr<double> CompressionFp8Case::Error(const ExecContext& context) {
  BATON_RETURN_IF_ERROR(Run(context, 0));
  BATON_RETURN_IF_ERROR(context.queue->Wait());
  BATON_ASSIGN_OR_RETURN(const std::vector<std::byte> got,
                         Downloaded(pages_, static_cast<int64_t>(page_bytes())));
  BATON_ASSIGN_OR_RETURN(const std::vector<std::byte> want, OnHost());
  int64_t different = 0;
  for (size_t i = 0; i < want.size(); ++i) different += got[i] == want[i] ? 0 : 1;
  return static_cast<double>(different) / static_cast<double>(want.size());
}

absl::StatusOr<std::vector<std::byte>> CompressionFp8Case::OnHost() const {
  BATON_ASSIGN_OR_RETURN(const std::vector<uint16_t> bits, Downloaded(tokens_, elements()));
  std::vector<float> keys(bits.size());
  std::transform(bits.begin(), bits.end(), keys.begin(), BF16ToF32);
  const std::vector<int32_t> positions = Positions(tokens());
  const SequenceRows sequence = {
      .row_begin = 0, .row_count = tokens(), .page_table = table_.data()};
  Buffer pages(page_bytes());
  HostContext host;
  BATON_RETURN_IF_ERROR(CpuOps().kv_write(host.get(),
                                          {.k = keys.data(),
                                           .k_stride = kStride,
                                           .v = keys.data() + kWidth,
                                           .v_stride = kStride,
                                           .positions = positions.data(),
                                           .rows = tokens(),
                                           .sequences = &sequence,
                                           .num_sequences = 1,
                                           .pages = {.base = pages.data(), .layout = layout_}}));
  return std::vector<std::byte>(pages.bytes().begin(), pages.bytes().end());
}

double CompressionFp8Case::bytes() const {
  return sizeof(uint16_t) * static_cast<double>(elements()) + static_cast<double>(page_bytes());
}

}  // namespace baton::kernels::cuda
