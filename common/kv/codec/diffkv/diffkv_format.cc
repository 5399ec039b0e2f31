#include "common/kv/codec/diffkv/diffkv_format.h"

#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "common/kv/codec/codec_context.h"
#include "common/kv/codec/diffkv/diffkv_codec.h"
#include "common/kv/codec/diffkv/diffkv_device_arrays.h"
#include "common/kv/codec/diffkv/diffkv_sequence.h"
#include "common/kv/codec/encoded_format.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/kv_calibration.h"
#include "common/kv/codec/policy_params.h"
#include "common/kv/pool/page_pool.h"
#include "kernels/kv_format/diffkv.h"
#include "kernels/ops/diffkv_params.h"

namespace baton::kv {
namespace {

kernels::DiffKvTier Tier(KvTier tier) {
  return {.key_bits = KeyBits(tier), .value_bits = ValueBits(tier)};
}

kernels::DiffKvPolicy KernelPolicy(const DiffKvPolicy& policy) {
  using Score = DiffKvPolicy::Score;
  using Base = DiffKvPolicy::Base;
  using Decision = DiffKvPolicy::Decision;
  return {.alpha_high = policy.alpha_high,
          .alpha_low = policy.alpha_low,
          .scoring = policy.score == Score::kAll ? kernels::DiffKvScoring::kAllLater
                                                 : kernels::DiffKvScoring::kLastWindow,
          .base = policy.base == Base::kTokenIndex ? kernels::DiffKvBase::kIndex
                                                   : kernels::DiffKvBase::kLength,
          .rule = policy.decision == Decision::kPaper ? kernels::DiffKvRule::kPaper
                                                      : kernels::DiffKvRule::kRelease,
          .window = policy.window,
          .sinks = policy.sinks};
}

}  // namespace

absl::StatusOr<std::unique_ptr<DiffKvFormat>> DiffKvFormat::Create(const CodecContext& context,
                                                                   int64_t pool_bytes) {
  const int32_t head_dim = context.dimensions.head_dim;
  const size_t page_bytes = kernels::DiffKvPageBytes(head_dim);
  if (page_bytes == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "KV format diffkv has pages for head_dim 64 and 128; the model has ", head_dim));
  }
  BATON_ASSIGN_OR_RETURN(auto pool,
                         PagePool::Create(pool_bytes, page_bytes, context.pool_memory()));
  return std::unique_ptr<DiffKvFormat>(new DiffKvFormat(context, std::move(pool)));
}

kernels::DiffKvGeometry DiffKvFormat::geometry(const DiffKvPolicy& policy) const {
  return {.kv_heads = context_.dimensions.kv_heads,
          .head_dim = context_.dimensions.head_dim,
          .tiers = {Tier(policy.high), Tier(policy.low)}};
}

DiffKvCodec& DiffKvFormat::codec(const DiffKvPolicy& policy) {
  std::unique_ptr<DiffKvCodec>& codec = codecs_[{policy.high, policy.low}];
  if (codec == nullptr) {
    codec = std::make_unique<DiffKvCodec>(
        context_, *pool_, blocks_, Tier(policy.high), Tier(policy.low));
  }
  return *codec;
}

absl::Status DiffKvFormat::Check(const KvResidentPolicy& policy,
                                 int64_t prompt_tokens,
                                 int64_t max_tokens,
                                 int32_t sequences) const {
  const auto& diffkv = std::get<DiffKvPolicy>(policy);
  const int64_t pages =
      sequences *
      PlanDiffKvPages(geometry(diffkv), context_.dimensions.layers, prompt_tokens, max_tokens)
          .pages();
  if (pages > pool_->pages_total()) {
    return absl::InvalidArgumentError(absl::StrCat("EXCEEDS_CAPACITY: the request needs ",
                                                   pages,
                                                   " diffkv pages; the pool has ",
                                                   pool_->pages_total()));
  }
  return absl::OkStatus();
}

int32_t DiffKvFormat::observation_window(const KvResidentPolicy& policy) const {
  return std::get<DiffKvPolicy>(policy).score == DiffKvPolicy::Score::kAll
             ? std::numeric_limits<int32_t>::max()
             : kernels::kDiffKvWindowQueries;
}

uint64_t DiffKvFormat::calibration_digest() const {
  return context_.calibration == nullptr ? 0 : FloorDigest(context_.calibration->diffkv_floor);
}

WindowShape DiffKvFormat::window(const KvResidentPolicy& policy, int64_t prompt_tokens) const {
  const DiffKvPagePlan plan = PlanDiffKvPages(geometry(std::get<DiffKvPolicy>(policy)),
                                              context_.dimensions.layers,
                                              prompt_tokens,
                                              /*max_tokens=*/0);
  return {.pages_per_layer = plan.prompt_pages_per_layer,
          .page_bytes = static_cast<int64_t>(pool_->stride_bytes())};
}

std::unique_ptr<EncodedKv> DiffKvFormat::Allocate(const KvResidentPolicy& policy,
                                                  int64_t prompt_tokens,
                                                  int64_t max_tokens) {
  const auto& diffkv = std::get<DiffKvPolicy>(policy);
  const DiffKvPagePlan plan =
      PlanDiffKvPages(geometry(diffkv), context_.dimensions.layers, prompt_tokens, max_tokens);
  std::optional<std::vector<PageId>> ids = pool_->Allocate(plan.pages());
  if (!ids.has_value()) {
    return nullptr;
  }
  std::unique_ptr<DiffKvDeviceArrays> device;
  if (!on_host()) {
    auto arrays = DiffKvDeviceArrays::Allocate(
        blocks_,
        {.layers = plan.layers,
         .kv_heads = context_.dimensions.kv_heads,
         .columns = geometry(diffkv).columns_for(prompt_tokens + max_tokens),
         .lease_ids = plan.pages(),
         .prompt_tokens = prompt_tokens,
         .probability_stride = prompt_tokens + max_tokens});
    if (!arrays.ok()) {
      pool_->ReleaseAll(*ids);
      return nullptr;
    }
    device = *std::move(arrays);
  }
  const DiffKvSettings settings = {.policy = KernelPolicy(diffkv), .every = diffkv.every};
  return std::make_unique<DiffKvSequence>(
      codec(diffkv), settings, prompt_tokens, max_tokens, *std::move(ids), std::move(device));
}

bool DiffKvFormat::Extend(EncodedKv& sequence, int64_t prompt_tokens, int64_t max_tokens) {
  return static_cast<DiffKvSequence&>(sequence).Extend(prompt_tokens, max_tokens);
}

PoolBytes DiffKvFormat::pool() const {
  const auto stride = static_cast<int64_t>(pool_->stride_bytes());
  return {.total = pool_->pages_total() * stride, .free = pool_->pages_free() * stride};
}

}  // namespace baton::kv
