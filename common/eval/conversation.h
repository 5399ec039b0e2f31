// Cases that go on: a question, its answer, the next question.
#pragma once

#include <functional>
#include <optional>
#include <string_view>

#include "absl/status/statusor.h"

#include "common/eval/eval_case.h"
#include "common/eval/result_row.h"
#include "common/eval/result_writer.h"

namespace baton::eval {

// The case that follows when `turn` was answered with `output`: its messages are those of `turn`,
// the output and the next question; its id is that of the conversation and "#2", "#3", ... Nothing
// after the last turn.
std::optional<EvalCase> NextTurn(const EvalCase& turn, std::string_view output);

// Answers a case and, one after another, the turns that follow; then appends the rows that `writer`
// does not have. Whether every answer was right; errors name the turn.
absl::StatusOr<bool> RunTurns(
    const EvalCase& eval_case,
    const std::function<absl::StatusOr<ResultRow>(const EvalCase& turn)>& answer,
    ResultWriter& writer);

// `writer` has the rows of all turns.
bool FinishedTurns(const EvalCase& eval_case, const ResultWriter& writer);

// The id that all turns of a conversation share.
std::string_view ConversationId(std::string_view turn_id);

}  // namespace baton::eval
