#include "common/kv/codec/hidden/hidden_pool.h"

#include <memory>
#include <optional>
#include <utility>

#include "common/base/status_macros.h"
#include "common/kv/codec/codec_context.h"
#include "common/kv/codec/encoded_format.h"
#include "common/kv/codec/hidden/hidden_state.h"
#include "common/kv/codec/kv_format.h"
#include "common/kv/codec/kv_policy.h"
#include "common/kv/pool/run_pool.h"
#include "kernels/core/dtype.h"

namespace baton::kv {

absl::StatusOr<std::unique_ptr<HiddenPool>> HiddenPool::Create(const CodecContext& context,
                                                               int64_t pool_bytes) {
  BATON_ASSIGN_OR_RETURN(auto pool, RunPool::Create(pool_bytes, context.pool_memory()));
  return std::unique_ptr<HiddenPool>(new HiddenPool(context, std::move(pool)));
}

HiddenShape HiddenPool::Shape(const KvFormatPolicy& policy, int64_t prompt_tokens) const {
  const KvDimensions& kv = context_.dimensions;
  const bool scored = policy.id() == KvFormatId::kDiffKv;
  return {.row = {.width = context_.hidden_size,
                  .dtype =
                      policy.hidden == HiddenWire::kFp8 ? kernels::DType::kF8E4M3 : context_.dtype},
          .prompt_tokens = prompt_tokens,
          .score_floats =
              scored ? int64_t{kv.layers - context_.full_layers} * kv.kv_heads * prompt_tokens : 0};
}

std::unique_ptr<HiddenState> HiddenPool::Allocate(const HiddenShape& shape) {
  const std::optional<RunPool::Run> run = pool_->Allocate(shape.bytes());
  return run.has_value() ? std::make_unique<HiddenState>(context_, *pool_, *run, shape) : nullptr;
}

PoolBytes HiddenPool::pool() const {
  return {.total = pool_->bytes_total(), .free = pool_->bytes_free()};
}

bool HiddenPool::Fits(const HiddenShape& shape) const {
  return RunPool::UnitsFor(shape.bytes()) <= pool_->units_total();
}

}  // namespace baton::kv
