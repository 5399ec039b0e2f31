// Decode steps as the engine runs them: their ops are gathered, and launched as one graph when they
// are those of a step before (kernels/core/op_graphs.h).
#pragma once

#include "absl/status/status.h"

#include "kernels/core/exec_context.h"
#include "kernels/core/op_graphs.h"

namespace baton::model {

// Runs `step`, a callable without arguments that returns a status.
template <typename Step>
absl::Status Gathered(const kernels::ExecContext& exec, const Step& step) {
  if (exec.graphs != nullptr) {
    exec.graphs->Begin();
  }
  absl::Status status = step();
  if (exec.graphs != nullptr) {
    status.Update(exec.graphs->End());
  }
  return status;
}

}  // namespace baton::model
