#include "common/model/activations.h"

#include <algorithm>

#include "common/model/row_set.h"

namespace baton::model {
namespace {

kernels::Buffer Floats(int64_t rows, int64_t columns) {
  return kernels::Buffer(static_cast<size_t>(rows * columns) * sizeof(float));
}

}  // namespace

Activations::Activations(const checkpoint::ModelConfig& config, int32_t max_step_rows) {
  const int64_t tile = std::min(max_step_rows, kTileRows);
  const int64_t heads_width = int64_t{config.num_heads} * config.head_dim;
  const int64_t kv_width = int64_t{config.num_kv_heads} * config.head_dim;
  const int64_t groups = config.num_kv_cache_layers() - config.num_key_value_layers;
  residual = Floats(max_step_rows, config.hidden_size);
  survivors = Floats(config.swiftkv() ? max_step_rows : 0, config.hidden_size);
  normed = Floats(tile, config.hidden_size);
  projected = Floats(tile, std::max(heads_width + 2 * kv_width, 2 * groups * kv_width));
  attended = Floats(tile, heads_width);
  gate_up = Floats(tile, 2 * int64_t{config.intermediate_size});
  gated = Floats(tile, config.intermediate_size);
}

}  // namespace baton::model
