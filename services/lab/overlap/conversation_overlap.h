// How well the key basis of a conversation's first prompt fits its later turns.
#pragma once

#include "absl/status/status.h"

#include "common/eval/eval_case.h"
#include "common/text/load_tokenizer.h"
#include "services/lab/overlap/overlap_table.h"
#include "services/lab/table/table_model.h"

namespace baton::lab {

// Computes the prompt of every turn whole, with the answers of the case as the assistant's, and
// adds every stored layer to `table`. New are the tokens of a turn behind those that it has in
// common with the prompt of the turn before. kInvalidArgument for a case without later turns and
// for ranks that its keys can't have: above their width or the tokens of the first prompt.
absl::Status AddConversation(const eval::EvalCase& conversation,
                             const text::ModelTokenizer& tokenizer,
                             TableModel& model,
                             OverlapTable& table);

}  // namespace baton::lab
