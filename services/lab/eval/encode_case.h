// The prompt of an evaluation case.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

#include "common/eval/eval_case.h"
#include "common/text/load_tokenizer.h"

namespace baton::lab {

// The case's messages through the model's chat template, with the generation prompt.
absl::StatusOr<std::vector<int32_t>> EncodeCase(const eval::EvalCase& eval_case,
                                                const text::ModelTokenizer& tokenizer);

}  // namespace baton::lab
