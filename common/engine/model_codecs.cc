#include "common/engine/model_codecs.h"

#include <algorithm>
#include <cstdint>
#include <span>

#include "common/kv/codec/codec_context.h"
#include "common/model/forward.h"
#include "common/model/model.h"
#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/ops/op_table.h"

namespace baton::engine {

kv::CodecContext MakeCodecContext(const model::Model& model,
                                  const kernels::ExecContext& exec,
                                  const kernels::OpTable& ops,
                                  kernels::DType dtype,
                                  int64_t max_positions) {
  const model::KvShape shape = model.kv_shape();
  const std::span<const float> frequencies = model.rope_inverse_frequencies();
  kv::CodecContext context = {
      .ops = &ops,
      .exec = exec,
      .dimensions = {.layers = shape.layers,
                     .kv_heads = shape.kv_heads,
                     .head_dim = shape.head_dim},
      .full_layers = std::min(model.config().num_key_value_layers, shape.layers),
      .shares_layers = model.config().key_value_group_size > 1,
      .hidden_size = model.config().hidden_size,
      .heads = model.config().num_heads,
      .dtype = dtype,
      .rope = {.inverse_frequencies = {frequencies.begin(), frequencies.end()},
               .max_positions = max_positions},
      .key_bias = {}};
  for (int32_t layer = 0; layer < shape.layers; ++layer) {
    context.key_bias.push_back(model.key_bias(layer));
  }
  return context;
}

}  // namespace baton::engine
