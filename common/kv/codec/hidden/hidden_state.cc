#include "common/kv/codec/hidden/hidden_state.h"

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/kv/codec/codec_context.h"
#include "common/kv/pool/run_pool.h"
#include "kernels/core/memory.h"
#include "kernels/ops/op_table.h"

namespace baton::kv {

HiddenState::HiddenState(const CodecContext& context,
                         RunPool& pool,
                         RunPool::Run run,
                         HiddenShape shape)
    : context_(context), pool_(pool), run_(run), shape_(shape), base_(pool.bytes(run).data()) {
  BATON_CHECK(run.units == RunPool::UnitsFor(shape.bytes()));
}

HiddenState::~HiddenState() { pool_.Release(run_); }

std::byte* HiddenState::row(int64_t token) const {
  return base_ + static_cast<size_t>(token) * shape_.row.row_bytes();
}

absl::Status HiddenState::Write(int64_t token_begin, int64_t rows, const void* x, int64_t stride) {
  BATON_CHECK(token_begin >= 0 && token_begin + rows <= shape_.prompt_tokens);
  if (token_begin == 0) {
    std::byte* const behind = row(shape_.prompt_tokens);
    BATON_RETURN_IF_ERROR(
        context_.exec.memory->Zero(behind, static_cast<size_t>(base_ + shape_.bytes() - behind)));
  }
  return context_.ops->hidden_encode(
      context_.exec,
      {.x = x, .x_stride = stride, .rows = rows, .layout = shape_.row, .coded = row(token_begin)});
}

absl::Status HiddenState::Read(int64_t token_begin, int64_t rows, void* out) const {
  BATON_CHECK(token_begin >= 0 && token_begin + rows <= shape_.prompt_tokens);
  return context_.ops->hidden_decode(context_.exec,
                                     {.coded = row(token_begin),
                                      .rows = rows,
                                      .layout = shape_.row,
                                      .out = out,
                                      .out_stride = shape_.row.width});
}

float* HiddenState::scores() const {
  return shape_.score_floats == 0 ? nullptr
                                  : reinterpret_cast<float*>(pages(shape_.row_pages(), 0).data());
}

std::span<std::byte> HiddenState::pages(int32_t begin, int32_t count) const {
  const auto bytes = static_cast<size_t>(shape_.page_bytes());
  return {base_ + static_cast<size_t>(begin) * bytes, static_cast<size_t>(count) * bytes};
}

}  // namespace baton::kv
