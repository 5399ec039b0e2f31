// Coefficients that the upper layers of a SwiftKV model share.
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"

#include "common/base/status_macros.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/shadowkv/shadowkv_codec.h"
#include "common/kv/codec/shadowkv/shadowkv_device_arrays.h"
#include "common/kv/codec/shadowkv/shadowkv_map.h"
#include "common/kv/codec/shadowkv/shadowkv_sequence.h"
#include "kernels/core/exec_context.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/op_table.h"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kv {

// The keys of all the group's layers are in the working pages: the upper layers of a SwiftKV model
// are projected together, before the first of them attends.
absl::Status ShadowKvSequence::EncodeJoint(const WorkingKv& working, const JointGroup& group) {
  std::vector<kernels::ShadowKvJointLayer> layers;
  for (int32_t kv_layer = group.begin; kv_layer < group.end; ++kv_layer) {
    layers.push_back(FactoredLayer(working, kv_layer));
  }
  const kernels::ShadowKvJointLayer* op_layers = layers.data();
  if (!on_host()) {
    BATON_ASSIGN_OR_RETURN(
        op_layers, device_->UploadJoint(*codec_.context().exec.memory, group.begin, layers));
  }
  BATON_ASSIGN_OR_RETURN(const kernels::ExecContext exec, ExecToEncode(group.begin));
  return codec_.context().ops->shadowkv_encode_joint(
      exec,
      {.layout = map_.layout(group.begin),
       .pages = working.pages,
       .layers = op_layers,
       .num_layers = static_cast<int64_t>(layers.size()),
       .rope = codec_.rope(),
       .coefficients = memory_->prompt() + group.coefficients});
}

std::optional<ShadowKvJointBlock> ShadowKvSequence::JointBlockDue(const JointGroup& group,
                                                                  int32_t position) {
  const kernels::ShadowKvTailLayout tail(map_.layout(group.begin), max_tokens_);
  if (!tail.BlockDueAt(position).has_value()) {
    return std::nullopt;
  }
  ShadowKvJointBlock block;
  for (int32_t kv_layer = group.begin; kv_layer < group.end; ++kv_layer) {
    block.layers.push_back(AtStep(kv_layer, position));
    block.key_biases.push_back(codec_.key_bias(kv_layer));
  }
  return block;
}

}  // namespace baton::kv
