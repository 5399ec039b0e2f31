// What the executor and a step's KV borrow of the engine.
#pragma once

#include "common/base/clock.h"
#include "common/kv/pool/page_pool.h"
#include "common/model/model.h"
#include "kernels/core/exec_context.h"
#include "kernels/kv_format/dense.h"
#include "kernels/ops/op_table.h"

namespace baton::engine {

// Everything is borrowed and must outlive the executor.
struct ExecutorContext {
  model::Model* model = nullptr;
  const kernels::ExecContext* exec = nullptr;
  const kernels::OpTable* ops = nullptr;
  kv::PagePool* pool = nullptr;
  kernels::DensePageLayout layout;
  const Clock* clock = nullptr;
};

}  // namespace baton::engine
