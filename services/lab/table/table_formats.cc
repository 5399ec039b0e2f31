#include "services/lab/table/table_formats.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "common/engine/model_codecs.h"
#include "common/kv/codec/codec_context.h"
#include "common/kv/codec/codec_set.h"
#include "common/kv/codec/encoded_format.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/hidden/hidden_state.h"
#include "common/kv/codec/kv_policy.h"
#include "services/lab/table/table_model.h"

namespace baton::lab {
namespace {

bool AnyNeeds(const std::vector<kv::KvPolicy>& policies, kv::KvFormatId id) {
  return std::ranges::any_of(policies, [&](const kv::KvPolicy& policy) {
    return policy.format() != nullptr && policy.format()->id() == id;
  });
}

bool AnyHidden(const std::vector<kv::KvPolicy>& policies) {
  return std::ranges::any_of(policies, [](const kv::KvPolicy& policy) {
    return policy.format() != nullptr && policy.format()->hidden != kv::HiddenWire::kNone;
  });
}

}  // namespace

absl::StatusOr<std::unique_ptr<TableFormats>> TableFormats::Create(
    const TableModel& model, const std::vector<kv::KvPolicy>& policies, int64_t pool_bytes) {
  kv::CodecContext context = engine::MakeCodecContext(model.model(),
                                                      model.exec(),
                                                      model.ops(),
                                                      model.dtype(),
                                                      model.config().max_position_embeddings);
  context.calibration = model.calibration();
  const kv::CodecPools pools = {
      .fp8_bytes = AnyNeeds(policies, kv::KvFormatId::kFp8) ? pool_bytes : 0,
      .diffkv_bytes = AnyNeeds(policies, kv::KvFormatId::kDiffKv) ? pool_bytes : 0,
      .shadowkv_bytes = AnyNeeds(policies, kv::KvFormatId::kShadowKv) ? pool_bytes : 0,
      .hidden_bytes = AnyHidden(policies) ? pool_bytes : 0};
  BATON_ASSIGN_OR_RETURN(auto codecs, kv::CodecSet::Create(std::move(context), pools));
  return std::unique_ptr<TableFormats>(new TableFormats(std::move(codecs)));
}

absl::StatusOr<std::unique_ptr<kv::EncodedKv>> TableFormats::Make(const kv::KvFormatPolicy& policy,
                                                                  int64_t prompt_tokens,
                                                                  int64_t new_tokens) {
  if (policy.id() == kv::KvFormatId::kDense) {
    return nullptr;
  }
  kv::EncodedFormat* format = codecs_->Find(policy.id());
  if (format == nullptr) {
    return absl::UnimplementedError(absl::StrCat(
        "KV policy ", policy.CanonicalString(), " is not for the table: no code executes it"));
  }
  BATON_RETURN_IF_ERROR(format->Check(policy.resident, prompt_tokens, new_tokens, /*sequences=*/1));
  if (format->PrefersDense(policy.resident, prompt_tokens)) {
    return nullptr;
  }
  auto encoded = format->Allocate(policy.resident, prompt_tokens, new_tokens);
  if (encoded == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "KV policy ", policy.CanonicalString(), ": the pool is full; raise --kv-pool-mib"));
  }
  return encoded;
}

absl::StatusOr<kv::HiddenShape> TableFormats::HiddenShapeOf(const kv::KvFormatPolicy& policy,
                                                            int64_t prompt_tokens) const {
  if (codecs_->hidden() == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("KV policy ",
                     policy.CanonicalString(),
                     " needs a SwiftKV model, whose upper layers are made from a hidden state"));
  }
  return codecs_->hidden()->Shape(policy, prompt_tokens);
}

absl::StatusOr<std::unique_ptr<kv::HiddenState>> TableFormats::MakeHidden(
    const kv::HiddenShape& shape) {
  auto hidden = codecs_->hidden()->Allocate(shape);
  if (hidden == nullptr) {
    return absl::ResourceExhaustedError("hidden states: the pool is full; raise --kv-pool-mib");
  }
  return hidden;
}

}  // namespace baton::lab
