// What the codecs of KV formats have to know of a model.
#pragma once

#include <cstdint>

#include "common/kv/codec/codec_context.h"
#include "common/model/model.h"
#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/ops/op_table.h"

namespace baton::engine {

// `dtype` is that of the pages in which prompts are computed; positions from 0 to max_positions - 1
// can be rotated. The context borrows the model and `ops`.
kv::CodecContext MakeCodecContext(const model::Model& model,
                                  const kernels::ExecContext& exec,
                                  const kernels::OpTable& ops,
                                  kernels::DType dtype,
                                  int64_t max_positions);

}  // namespace baton::engine
