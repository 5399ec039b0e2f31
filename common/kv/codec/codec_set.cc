#include "common/kv/codec/codec_set.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "common/kv/codec/diffkv/diffkv_format.h"
#include "common/kv/codec/fp8/fp8_format.h"
#include "common/kv/codec/shadowkv/shadowkv_format.h"

namespace baton::kv {

absl::StatusOr<std::unique_ptr<CodecSet>> CodecSet::Create(CodecContext context,
                                                           const CodecPools& pools) {
  if (context.calibration != nullptr) {
    const auto layers = static_cast<size_t>(context.dimensions.layers);
    for (const size_t size :
         {context.calibration->diffkv_floor.size(), context.calibration->shadowkv_budget.size()}) {
      if (size != 0 && size != layers) {
        return absl::InvalidArgumentError(
            absl::StrCat("calibration: a list for ", size, " layers; the model stores ", layers));
      }
    }
  }
  auto set = std::unique_ptr<CodecSet>(new CodecSet(std::move(context)));
  const int32_t head_dim = set->context_.dimensions.head_dim;
  if (pools.fp8_bytes > 0) {
    BATON_ASSIGN_OR_RETURN(set->formats_[KvFormatId::kFp8],
                           Fp8Format::Create(set->context_, pools.fp8_bytes));
  }
  if (pools.diffkv_bytes > 0 && DiffKvFormat::Serves(head_dim)) {
    BATON_ASSIGN_OR_RETURN(set->formats_[KvFormatId::kDiffKv],
                           DiffKvFormat::Create(set->context_, pools.diffkv_bytes));
  }
  if (pools.shadowkv_bytes > 0 && ShadowKvFormat::Serves(head_dim)) {
    BATON_ASSIGN_OR_RETURN(
        set->formats_[KvFormatId::kShadowKv],
        ShadowKvFormat::Create(set->context_, pools.shadowkv_bytes, pools.shadowkv_host_bytes));
  }
  if (pools.hidden_bytes > 0 && set->has_upper_layers()) {
    BATON_ASSIGN_OR_RETURN(set->hidden_, HiddenPool::Create(set->context_, pools.hidden_bytes));
  }
  return set;
}

EncodedFormat* CodecSet::Find(KvFormatId id) const {
  const auto found = formats_.find(id);
  return found == formats_.end() ? nullptr : found->second.get();
}

}  // namespace baton::kv
