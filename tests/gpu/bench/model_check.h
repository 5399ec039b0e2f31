// Whether a model gives the same logits however its tokens are cut into steps.
#pragma once

#include "tests/gpu/bench/model_subject.h"

namespace baton::model {

// Prompts whole, in one step each, against the same prompts in several steps. One row a check:
//   bench, model        "check"
//   steps               "decode": all tokens but the last, then that one; "chunks"
//   sequences, tokens   packed, and of each
//   error               the largest difference of two logits, relative to the largest logit
// and of one that failed `failed` with the reason, perhaps instead of the error. Pages are drawn
// anew for every run. False if one failed.
bool CheckModel(const ModelSubject& subject);

}  // namespace baton::model
