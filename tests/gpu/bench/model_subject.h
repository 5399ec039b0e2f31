// What is measured.
#pragma once

#include <string>

#include "common/model/model.h"
#include "kernels/core/exec_context.h"
#include "kernels/ops/op_table.h"
#include "tests/gpu/bench/model_pages.h"

namespace baton::model {

// A loaded model, the back end that it runs on, and room for its sequences. Borrows all of it.
struct ModelSubject {
  std::string name;  // in the rows
  Model& model;
  const kernels::OpTable& ops;
  const kernels::ExecContext& exec;
  ModelPages& pages;
};

}  // namespace baton::model
