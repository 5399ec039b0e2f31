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
#include "common/kv/codec/kv_policy.h"
#include "services/lab/table/table_model.h"

namespace baton::lab {
namespace {

bool AnyNeeds(const std::vector<kv::KvPolicy>& policies, kv::KvFormatId id) {
  return std::ranges::any_of(policies, [&](const kv::KvPolicy& policy) {
    return policy.format() != nullptr && policy.format()->id() == id;
  });
}

absl::Status NotExecuted(const kv::KvFormatPolicy& policy, const char* why) {
  return absl::UnimplementedError(
      absl::StrCat("KV policy ", policy.CanonicalString(), " is not for the table: ", why));
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
      .shadowkv_bytes = AnyNeeds(policies, kv::KvFormatId::kShadowKv) ? pool_bytes : 0};
  BATON_ASSIGN_OR_RETURN(auto codecs, kv::CodecSet::Create(std::move(context), pools));
  return std::unique_ptr<TableFormats>(new TableFormats(std::move(codecs)));
}

absl::StatusOr<std::unique_ptr<kv::EncodedKv>> TableFormats::Make(const kv::KvFormatPolicy& policy,
                                                                  int64_t prompt_tokens,
                                                                  int64_t new_tokens) {
  if (policy.hidden != kv::HiddenWire::kNone) {
    return NotExecuted(policy, "it changes what is sent, and nothing is");
  }
  if (policy.id() == kv::KvFormatId::kDense) {
    return nullptr;
  }
  kv::EncodedFormat* format = codecs_->Find(policy.id());
  if (format == nullptr) {
    return NotExecuted(policy, "no code executes it");
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

}  // namespace baton::lab
