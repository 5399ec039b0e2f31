// Coefficients that the upper layers of a SwiftKV model share.
#include <cstdint>
#include <vector>

#include "absl/status/status.h"

#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/shadowkv/shadowkv_codec.h"
#include "common/kv/codec/shadowkv/shadowkv_map.h"
#include "common/kv/codec/shadowkv/shadowkv_sequence.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/op_table.h"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kv {

// The keys of all the group's layers are in the working pages: the upper layers of a SwiftKV model
// are projected together, before the first of them attends.
absl::Status ShadowKvSequence::EncodeJoint(const WorkingKv& working, const JointGroup& group) {
  std::vector<kernels::ShadowKvJointLayer> layers;
  for (int32_t kv_layer = group.begin; kv_layer < group.end; ++kv_layer) {
    layers.push_back(
        {.page_table = working.table.data + static_cast<ptrdiff_t>(kv_layer) * working.table.stride,
         .key_bias = codec_.key_bias(kv_layer),
         .prompt = prompt(kv_layer)});
  }
  return codec_.context().ops->shadowkv_encode_joint(
      codec_.ExecWith(workspace_bytes_),
      {.layout = map_.layout(group.begin),
       .pages = working.pages,
       .layers = layers.data(),
       .num_layers = static_cast<int64_t>(layers.size()),
       .rope = codec_.rope(),
       .coefficients = base_ + group.coefficients});
}

absl::Status ShadowKvSequence::CodeJoint(int32_t kv_layer, int32_t position) {
  const int32_t index = map_.group_of(kv_layer);
  if (index < 0 || map_.groups()[static_cast<size_t>(index)].end != kv_layer + 1) {
    return absl::OkStatus();
  }
  // Most steps have nothing to code: the layers need not be gathered for them.
  const kernels::ShadowKvTailLayout tail(map_.layout(kv_layer), max_tokens_);
  if (!tail.BlockDueAt(position).has_value()) {
    return absl::OkStatus();
  }
  std::vector<kernels::ShadowKvSequence> layers;
  std::vector<const float*> biases;
  for (int32_t i = map_.groups()[static_cast<size_t>(index)].begin; i <= kv_layer; ++i) {
    layers.push_back(AtStep(i, position));
    biases.push_back(codec_.key_bias(i));
  }
  return codec_.context().ops->shadowkv_append_joint(
      codec_.ExecWith(workspace_bytes_),
      {.layers = layers.data(),
       .key_bias = biases.data(),
       .num_layers = static_cast<int64_t>(layers.size()),
       .rope = codec_.rope()});
}

}  // namespace baton::kv
