#include "common/kv/codec/shadowkv/shadowkv_format.h"

#include <cstddef>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

#include "common/base/status_context.h"
#include "common/base/status_macros.h"
#include "common/kv/codec/codec_context.h"
#include "common/kv/codec/encoded_format.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/policy_params.h"
#include "common/kv/codec/shadowkv/shadowkv_codec.h"
#include "common/kv/codec/shadowkv/shadowkv_device_arrays.h"
#include "common/kv/codec/shadowkv/shadowkv_map.h"
#include "common/kv/codec/shadowkv/shadowkv_sequence.h"
#include "common/kv/codec/shadowkv/tailed_run.h"
#include "common/kv/pool/run_pool.h"
#include "kernels/kv_format/shadowkv.h"

namespace baton::kv {
namespace {

kernels::ShadowKvSelector Selector(ShadowKvPolicy::Selection selection) {
  switch (selection) {
    case ShadowKvPolicy::Selection::kMean:
      return kernels::ShadowKvSelector::kMean;
    case ShadowKvPolicy::Selection::kBounds:
      return kernels::ShadowKvSelector::kBounds;
    case ShadowKvPolicy::Selection::kQ2:
      return kernels::ShadowKvSelector::kQ2;
  }
  return kernels::ShadowKvSelector::kMean;
}

int32_t ValueBitsOf(ShadowKvPolicy::ValueType type) {
  switch (type) {
    case ShadowKvPolicy::ValueType::kBF16:
      return 16;
    case ShadowKvPolicy::ValueType::kV8:
      return 8;
    case ShadowKvPolicy::ValueType::kV4:
      return 4;
    case ShadowKvPolicy::ValueType::kV2:
      return 2;
  }
  return 16;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ShadowKvFormat>> ShadowKvFormat::Create(
    const CodecContext& context, int64_t pool_bytes, std::optional<int64_t> host_value_bytes) {
  if (context.dimensions.head_dim % 8 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("KV format shadowkv wants a head_dim that is a multiple of 8; the model has ",
                     context.dimensions.head_dim));
  }
  BATON_ASSIGN_OR_RETURN(auto pool, RunPool::Create(pool_bytes, context.pool_memory()));
  std::unique_ptr<RunPool> value_pool;
  if (host_value_bytes.value_or(0) > 0) {
    auto made = RunPool::Create(*host_value_bytes, context.exec.memory->staging());
    BATON_RETURN_IF_ERROR(WithContext(made.status(), "values of shadowkv in the host's memory"));
    value_pool = *std::move(made);
  }
  std::unique_ptr<ShadowKvFormat> format(
      new ShadowKvFormat(context, std::move(pool), std::move(value_pool), host_value_bytes != 0));
  BATON_ASSIGN_OR_RETURN(format->codec_, ShadowKvCodec::Create(context, format->blocks_));
  return format;
}

kernels::ShadowKvConfig ShadowKvFormat::Config(const KvResidentPolicy& policy,
                                               int64_t prompt_tokens) const {
  const auto& shadowkv = std::get<ShadowKvPolicy>(policy);
  kernels::ShadowKvConfig config;
  config.kv_heads = context_.dimensions.kv_heads;
  config.head_dim = context_.dimensions.head_dim;
  config.dtype = context_.dtype;
  config.rank = shadowkv.rank;
  config.chunk_tokens = shadowkv.chunk_tokens;
  config.budget_tokens = shadowkv.budget.Tokens(prompt_tokens);
  config.outlier_chunks = shadowkv.outlier_chunks;
  config.local_chunks = shadowkv.local_chunks;
  config.sink_chunks = shadowkv.sink_chunks;
  config.selector = Selector(shadowkv.selection);
  config.value_clusters = config.selector == kernels::ShadowKvSelector::kQ2 ? kValueClusters : 0;
  config.generated = shadowkv.generated == ShadowKvPolicy::Generated::kExact
                         ? kernels::ShadowKvGenerated::kExact
                         : kernels::ShadowKvGenerated::kBlocks;
  config.value_bits = ValueBitsOf(shadowkv.values);
  config.values_apart = shadowkv.value_place == ShadowKvPolicy::ValuePlace::kHost;
  config.landmark_bits = shadowkv.landmarks == ShadowKvPolicy::LandmarkType::kInt8 ? 8 : 16;
  config.int8_coefficients = shadowkv.factor == ShadowKvPolicy::FactorType::kInt8;
  return config;
}

ShadowKvMap ShadowKvFormat::Map(const KvResidentPolicy& policy, int64_t prompt_tokens) const {
  return {context_,
          Config(policy, prompt_tokens),
          std::get<ShadowKvPolicy>(policy).joint_rank,
          prompt_tokens};
}

absl::Status ShadowKvFormat::CheckOnDevice(const ShadowKvMap& map, int64_t tokens) const {
  const size_t workspace = codec_->WorkspaceBytes(map, tokens);
  const size_t held = context_.exec.device_workspace_bytes;
  return workspace <= held ? absl::OkStatus()
                           : absl::InvalidArgumentError(absl::StrCat(
                                 "EXCEEDS_CAPACITY: shadowkv needs ",
                                 workspace,
                                 " bytes of the device's scratch memory for a sequence of ",
                                 tokens,
                                 " tokens; there are ",
                                 held));
}

absl::Status ShadowKvFormat::CheckPools(const ShadowKvMap& map,
                                        int64_t max_tokens,
                                        int32_t sequences) const {
  const auto check = [](int64_t units, const RunPool& pool, absl::string_view what) {
    return units <= pool.units_total() ? absl::OkStatus()
                                       : absl::InvalidArgumentError(absl::StrCat(
                                             "EXCEEDS_CAPACITY: the request needs ",
                                             units * static_cast<int64_t>(RunPool::kUnitBytes),
                                             " bytes of ",
                                             what,
                                             "; the pool has ",
                                             pool.bytes_total()));
  };
  const auto units = [&](size_t prompt_bytes, const TailMap& tails) {
    return sequences * RunPool::UnitsFor(TailedRun::BytesFor(prompt_bytes, tails));
  };
  const int64_t all = units(map.prompt_bytes(), map.Tails(max_tokens));
  const int64_t values =
      map.values_apart() ? units(map.value_bytes(), map.ValueTails(max_tokens)) : 0;
  if (value_pool_ == nullptr) {
    return check(all + values, *pool_, "shadowkv memory");
  }
  BATON_RETURN_IF_ERROR(check(all, *pool_, "shadowkv memory"));
  return check(values, *value_pool_, "the host's memory for values of shadowkv");
}

absl::Status ShadowKvFormat::Check(const KvResidentPolicy& policy,
                                   int64_t prompt_tokens,
                                   int64_t max_tokens,
                                   int32_t sequences) const {
  const auto& shadowkv = std::get<ShadowKvPolicy>(policy);
  if (shadowkv.joint_rank > 0 && context_.full_layers >= context_.dimensions.layers) {
    return absl::InvalidArgumentError(
        "kv_policy: joint: the model has no layers that are projections of one hidden state "
        "(SwiftKV); leave it out");
  }
  const ShadowKvMap map = Map(policy, prompt_tokens);
  if (map.values_apart() && !serves_host_values_) {
    return absl::FailedPreconditionError(
        "kv_policy shadowkv: vplace=host: the worker has no memory of the host for values; start "
        "it "
        "with --shadowkv_host_pool_mib, or leave vplace out");
  }
  if (!on_host()) {
    BATON_RETURN_IF_ERROR(CheckOnDevice(map, prompt_tokens + max_tokens));
  }
  return CheckPools(map, max_tokens, sequences);
}

bool ShadowKvFormat::PrefersDense(const KvResidentPolicy& policy, int64_t prompt_tokens) const {
  const kernels::ShadowKvPromptLayout layout(Config(policy, prompt_tokens), prompt_tokens);
  // A budget of 1.0 wants everything coded and everything attended, to see what the coding costs.
  return std::get<ShadowKvPolicy>(policy).budget.whole_prompt() ? layout.coded.chunks == 0
                                                                : layout.prefers_dense();
}

WindowShape ShadowKvFormat::window(const KvResidentPolicy& policy, int64_t prompt_tokens) const {
  const ShadowKvMap map = Map(policy, prompt_tokens);
  return {.pages_per_layer = map.most_pages(),
          .page_bytes = static_cast<int64_t>(map.page_bytes())};
}

std::unique_ptr<EncodedKv> ShadowKvFormat::Allocate(const KvResidentPolicy& policy,
                                                    int64_t prompt_tokens,
                                                    int64_t max_tokens) {
  ShadowKvMap map = Map(policy, prompt_tokens);
  std::unique_ptr<TailedRun> memory =
      TailedRun::Take(*pool_, on_host(), map.prompt_bytes(), map.Tails(max_tokens));
  if (memory == nullptr) {
    return nullptr;
  }
  std::unique_ptr<TailedRun> values;
  if (map.values_apart()) {
    RunPool& pool = value_pool_ == nullptr ? *pool_ : *value_pool_;
    values = TailedRun::Take(pool, on_host(), map.value_bytes(), map.ValueTails(max_tokens));
    if (values == nullptr) {
      return nullptr;
    }
  }
  std::unique_ptr<ShadowKvDeviceArrays> device;
  if (!on_host()) {
    auto arrays = ShadowKvDeviceArrays::Allocate(blocks_, map.layers());
    if (!arrays.ok()) {
      return nullptr;
    }
    device = *std::move(arrays);
  }
  return std::make_unique<ShadowKvSequence>(
      *codec_, std::move(map), max_tokens, std::move(memory), std::move(values), std::move(device));
}

bool ShadowKvFormat::Extend(EncodedKv& sequence, int64_t prompt_tokens, int64_t max_tokens) {
  return static_cast<ShadowKvSequence&>(sequence).Extend(prompt_tokens, max_tokens);
}

PoolBytes ShadowKvFormat::pool() const {
  return {.total = pool_->bytes_total(), .free = pool_->bytes_free()};
}

PoolBytes ShadowKvFormat::host_pool() const {
  return value_pool_ == nullptr
             ? PoolBytes{}
             : PoolBytes{.total = value_pool_->bytes_total(), .free = value_pool_->bytes_free()};
}

}  // namespace baton::kv
