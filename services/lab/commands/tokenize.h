// baton-lab tokenize: the text side of a model directory.
#pragma once

#include <istream>
#include <ostream>

#include "absl/status/status.h"

#include "common/text/load_tokenizer.h"

namespace baton::lab {

// Answers JSON lines from stdin on stdout with the tokenizer of --model; see TokenizeLines.
// --chat-template FILE replaces the model's chat template.
absl::Status RunTokenize();

// One JSON object per input line, one per output line:
//   {text, add_special_tokens = true}                -> {ids}
//   {messages, add_generation_prompt = true, tools?} -> {rendered, ids}
//   {ids, skip_special_tokens = false}               -> {text, pieces, final}
// `pieces` is what the incremental detokenizer gives per token, `final` what it flushes at the end.
// A line that can't be answered gives {error} and the work goes on; kInvalidArgument counts such
// lines at the end. At most 64 MiB per line.
absl::Status TokenizeLines(const text::ModelTokenizer& model, std::istream& in, std::ostream& out);

}  // namespace baton::lab
