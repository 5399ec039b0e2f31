// Evaluation cases as load: questions whose answers are known.
#pragma once

#include <memory>
#include <vector>

#include "common/eval/eval_case.h"
#include "services/loadtest/workload/workload.h"

namespace baton::loadtest {

// Every case with the turns that follow it, greedily, in the order of `cases`; with `repeat` from
// the front again, for ever. Answers are scored.
std::unique_ptr<Workload> MakeEvalWorkload(std::vector<eval::EvalCase> cases, bool repeat);

}  // namespace baton::loadtest
