// An evaluation case as a request.
#pragma once

#include "common/eval/eval_case.h"
#include "proto/baton/inference/v1/inference.pb.h"

namespace baton::client {

// Sets prompt, greedy sampling and max_tokens as the case wants them.
void SetCase(const eval::EvalCase& eval_case, inference::v1::GenerateRequest* request);

}  // namespace baton::client
