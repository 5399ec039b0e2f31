// Matmul over packed panels. Every element of the result is summed in the order that isa_kernels.h
// describes at kDepthBlock, whatever the number of rows, tile or thread: docs/adr/0002-cpu-gemm.md.
#include <algorithm>

#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/workspace.h"
#include "kernels/ops/activations.h"
#include "kernels/ops/matmul_parts.h"
#include "kernels/ops/params.h"
#include "kernels/ops/validate.h"

namespace baton::kernels::cpu {
namespace {

// From this many rows on, widening a bf16 panel once into scratch beats widening it in every tile.
constexpr int64_t kWidenRows = 37;
// Most rows of a task: their depth block (384 x 256 x 4 bytes) stays in L2 while the task goes over
// its panels.
constexpr int64_t kMaxTaskRows = 384;
// Panels of a task: enough to use the rows again, few enough to share out.
constexpr int64_t kMaxTaskPanels = 8;

// The part of the result that one index computes.
struct Block {
  int64_t row_begin;
  int64_t row_end;
  int64_t panel_begin;
  int64_t panel_end;
};

// The panel task of one depth block, with the sum so far in `out` when it is not the first.
PanelTask DepthTask(const IsaKernels& isa,
                    const MatmulParams& params,
                    const Block& block,
                    int64_t panel,
                    int64_t depth_begin) {
  const PackedMatrix& weight = params.weight;
  const int64_t column = panel * isa.panel_columns;
  const int64_t end_column = std::min(weight.out_features, block.panel_end * isa.panel_columns);
  const int64_t element =
      panel * isa.panel_columns * weight.in_features + depth_begin * isa.panel_columns;
  PanelTask task;
  task.x = Floats(params.x) + block.row_begin * params.x_stride + depth_begin;
  task.x_stride = params.x_stride;
  task.rows = block.row_end - block.row_begin;
  task.depth = std::min(kDepthBlock, weight.in_features - depth_begin);
  task.panel = weight.data + static_cast<size_t>(element) * DTypeBytes(weight.dtype);
  task.panel_stride = weight.in_features * isa.panel_columns;
  task.columns = end_column - column;
  task.bias = depth_begin == 0 && params.bias != nullptr ? params.bias + column : nullptr;
  task.accumulate = params.accumulate || depth_begin > 0;
  task.out = Floats(params.out) + block.row_begin * params.out_stride + column;
  task.out_stride = params.out_stride;
  return task;
}

// Few rows, or fp32 panels: the panels are read where they are.
void RunInPlace(const IsaKernels& isa, const MatmulParams& params, const Block& block) {
  const bool bf16 = params.weight.dtype == DType::kBF16;
  for (int64_t depth = 0; depth == 0 || depth < params.weight.in_features; depth += kDepthBlock) {
    const PanelTask task = DepthTask(isa, params, block, block.panel_begin, depth);
    bf16 ? isa.panel_bf16(task) : isa.panel_f32(task);
  }
}

// Many rows of a bf16 weight: each panel's depth block is widened into scratch first.
void RunWidened(const IsaKernels& isa,
                const MatmulParams& params,
                const Block& block,
                float* scratch) {
  for (int64_t depth = 0; depth == 0 || depth < params.weight.in_features; depth += kDepthBlock) {
    for (int64_t panel = block.panel_begin; panel < block.panel_end; ++panel) {
      PanelTask task = DepthTask(isa, params, block, panel, depth);
      task.columns = std::min<int64_t>(task.columns, isa.panel_columns);
      isa.widen_panel(static_cast<const uint16_t*>(task.panel), task.depth, scratch);
      task.panel = scratch;
      isa.panel_f32(task);
    }
  }
}

// About four tasks per thread where the matrix allows.
int64_t TaskPanels(int64_t panels, int64_t row_blocks, int threads) {
  const int64_t wanted = panels * row_blocks / (int64_t{4} * threads);
  return std::clamp<int64_t>(wanted, 1, kMaxTaskPanels);
}

absl::Status Multiply(const IsaKernels& isa,
                      const ExecContext& context,
                      const MatmulParams& params) {
  const size_t slice_bytes = MatmulScratchBytes(isa);
  if (absl::Status status = CheckWorkspace("matmul", context, slice_bytes); !status.ok()) {
    return status;
  }
  const int64_t panels = (params.weight.out_features + isa.panel_columns - 1) / isa.panel_columns;
  const int64_t row_blocks = (params.rows + kMaxTaskRows - 1) / kMaxTaskRows;
  const int64_t task_rows = (params.rows + row_blocks - 1) / std::max<int64_t>(row_blocks, 1);
  const int64_t task_panels = TaskPanels(panels, row_blocks, context.pool->threads());
  const int64_t panel_groups = (panels + task_panels - 1) / task_panels;
  const bool widen = params.weight.dtype == DType::kBF16 && params.rows >= kWidenRows;
  const int64_t multiplications =
      params.rows * params.weight.out_features * params.weight.in_features;
  ParallelFor(context,
              row_blocks * panel_groups,
              multiplications < 8 * kSerialElements,
              [&](int64_t index, int thread) {
                Block block;
                block.row_begin = index / panel_groups * task_rows;
                block.row_end = std::min(params.rows, block.row_begin + task_rows);
                block.panel_begin = index % panel_groups * task_panels;
                block.panel_end = std::min(panels, block.panel_begin + task_panels);
                if (widen) {
                  std::byte* slice =
                      context.workspace->data() + static_cast<size_t>(thread) * slice_bytes;
                  RunWidened(isa, params, block, reinterpret_cast<float*>(slice));
                } else {
                  RunInPlace(isa, params, block);
                }
              });
  return absl::OkStatus();
}

}  // namespace

absl::Status Matmul(const IsaKernels& isa, const ExecContext& context, const MatmulParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  return RunMatmulParts<RmsNorm, Multiply, Rope, SiluMul>(params, isa, context);
}

}  // namespace baton::kernels::cpu
