#include "common/model/activations.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"

#include "common/base/status_macros.h"
#include "common/checkpoint/model_config.h"
#include "common/model/row_set.h"
#include "kernels/core/dtype.h"
#include "kernels/core/memory.h"
#include "kernels/ops/op_table.h"

namespace baton::model {

absl::StatusOr<Activations> Activations::Create(const checkpoint::ModelConfig& config,
                                                int32_t max_step_rows,
                                                const kernels::OpTable& ops,
                                                kernels::MemorySpace& space) {
  struct Part {
    kernels::Memory Activations::* memory;
    int64_t rows;
    int64_t columns;
  };
  const int64_t tile = TileRows(ops, max_step_rows);
  const int64_t heads_width = int64_t{config.num_heads} * config.head_dim;
  const int64_t kv_width = int64_t{config.num_kv_heads} * config.head_dim;
  const int64_t groups = config.num_kv_cache_layers() - config.num_key_value_layers;
  const int64_t widest = std::max(heads_width + 2 * kv_width, 2 * groups * kv_width);
  const std::array<Part, 7> parts = {
      {{&Activations::residual, max_step_rows, config.hidden_size},
       {&Activations::survivors, config.swiftkv() ? max_step_rows : 0, config.hidden_size},
       {&Activations::normed, tile, config.hidden_size},
       {&Activations::projected, tile, widest},
       {&Activations::attended, tile, heads_width},
       {&Activations::gate_up, tile, 2 * int64_t{config.intermediate_size}},
       {&Activations::gated, tile, config.intermediate_size}}};
  Activations activations;
  for (const Part& part : parts) {
    const auto elements = static_cast<size_t>(part.rows * part.columns);
    BATON_ASSIGN_OR_RETURN(activations.*part.memory,
                           space.Allocate(elements * kernels::DTypeBytes(ops.activations)));
  }
  const auto sums = static_cast<size_t>(tile * config.num_heads);
  BATON_ASSIGN_OR_RETURN(activations.lse, space.Allocate(sums * sizeof(float)));
  return activations;
}

}  // namespace baton::model
