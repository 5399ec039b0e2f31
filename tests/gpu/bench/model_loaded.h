// A model in memory.
#pragma once

#include <string>

#include "common/model/model.h"
#include "kernels/core/exec_context.h"
#include "kernels/ops/op_table.h"

namespace baton::model {

// A loaded model and the back end that it runs on. Borrows both.
struct LoadedModel {
  std::string name;  // in the rows
  Model& model;
  const kernels::OpTable& ops;
  const kernels::ExecContext& exec;
};

}  // namespace baton::model
