#include "tests/gpu/bench/compression_fp8_case.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "common/base/status_macros.h"
#include "kernels/core/buffer.h"
#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/kv_format/dense.h"
#include "kernels/ops/fp8_params.h"
#include "tests/gpu/bench/compression_case.h"
#include "tests/gpu/bench/device_arena.h"
#include "tests/gpu/bench/fill.h"
#include "tests/gpu/bench/host_context.h"

namespace baton::kernels::cuda {
namespace {

constexpr uint32_t kSeed = 20240601;

std::vector<int32_t> PageIds(int32_t pages) {
  std::vector<int32_t> ids(static_cast<size_t>(pages));
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

}  // namespace

CompressionFp8Case::CompressionFp8Case(int32_t tokens)
    : CompressionCase("fp8_encode", tokens),
      source_layout_({.kv_heads = kKvHeads, .head_dim = kHeadDim}),
      layout_({.kv_heads = kKvHeads, .head_dim = kHeadDim, .dtype = DType::kF8E4M3}),
      table_(PageIds(layer_pages())) {
  std::shuffle(table_.begin(), table_.end(), std::mt19937(kSeed));
}

absl::Status CompressionFp8Case::Prepare(const ExecContext& context) {
  const auto source_bytes = kLayers * static_cast<int64_t>(source_page_bytes());
  source_ = arena_.Allocate<std::byte>(source_bytes);
  pages_ = arena_.Allocate<std::byte>(kLayers * static_cast<int64_t>(page_bytes()));
  op_table_ = arena_.Upload(table_);
  BATON_RETURN_IF_ERROR(arena_.status());
  BATON_RETURN_IF_ERROR(FillBf16(*context.queue, source_, source_bytes / 2, 2.0f, kSeed));
  return context.queue->Wait();
}

Fp8EncodeParams CompressionFp8Case::Params(std::byte* source,
                                           std::byte* pages,
                                           const int32_t* table) const {
  return {.source = {.base = source, .layout = source_layout_},
          .source_table = table,
          .tokens = tokens(),
          .page_table = table,
          .pages = {.base = pages, .layout = layout_}};
}

absl::Status CompressionFp8Case::Run(const ExecContext& context, int32_t layer) {
  return CudaOps()->fp8_encode(context,
                               Params(source_ + layer * static_cast<int64_t>(source_page_bytes()),
                                      pages_ + layer * static_cast<int64_t>(page_bytes()),
                                      op_table_));
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
  BATON_ASSIGN_OR_RETURN(const std::vector<std::byte> downloaded,
                         Downloaded(source_, static_cast<int64_t>(source_page_bytes())));
  Buffer source(downloaded.size());
  std::copy(downloaded.begin(), downloaded.end(), source.data());
  Buffer pages(page_bytes());
  HostContext host;
  BATON_RETURN_IF_ERROR(
      CpuOps().fp8_encode(host.get(), Params(source.data(), pages.data(), table_.data())));
  return std::vector<std::byte>(pages.bytes().begin(), pages.bytes().end());
}

double CompressionFp8Case::bytes() const {
  return static_cast<double>(source_page_bytes() + page_bytes());
}

}  // namespace baton::kernels::cuda
