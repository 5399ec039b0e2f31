#include "services/lab/baselines/kivi.h"

#include <algorithm>
#include <span>

#include "services/lab/baselines/baseline.h"
#include "services/lab/baselines/round_to_codes.h"
#include "services/lab/baselines/token_store.h"

namespace baton::lab {

void KiviBaseline::EncodeHead(HeadId at, std::span<float> keys, std::span<float> values) {
  AddAll(at, keys, values);
  Code(at);
}

void KiviBaseline::AppendHead(HeadId at,
                              const float* key,
                              const float* value,
                              int32_t /*position*/) {
  Add(at, key, value);
  Code(at);
}

void KiviBaseline::Code(HeadId at) {
  Coded& coded = coded_[Index(at)];
  TokenStore& tokens = store(at.kv_layer);
  const int64_t stride = tokens.slot_floats();
  const int64_t key_end = size(at) / kResidualTokens * kResidualTokens;
  for (; coded.keys < key_end; coded.keys += kGroup) {
    float* group = tokens.key(at.kv_head, static_cast<int32_t>(coded.keys));
    for (int32_t channel = 0; channel < head_dim(); ++channel) {
      RoundToCodes(group + channel, kGroup, stride, kBits);
    }
  }
  for (; coded.values < size(at) - kResidualTokens; ++coded.values) {
    float* value = tokens.value(at.kv_head, static_cast<int32_t>(coded.values));
    for (int64_t begin = 0; begin < head_dim(); begin += kGroup) {
      RoundToCodes(value + begin, std::min(kGroup, head_dim() - begin), 1, kBits);
    }
  }
}

int64_t KiviBaseline::HeadBytes(HeadId at) const {
  const Coded& coded = coded_[Index(at)];
  const int64_t code_bytes = int64_t{head_dim()} * kBits / 8;
  const int64_t channel_groups = (head_dim() + kGroup - 1) / kGroup;
  return coded.keys * code_bytes + coded.keys / kGroup * head_dim() * kGroupMetadataBytes +
         coded.values * (code_bytes + channel_groups * kGroupMetadataBytes) +
         (2 * int64_t{size(at)} - coded.keys - coded.values) * TokenBytes() / 2;
}

}  // namespace baton::lab
