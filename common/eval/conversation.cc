#include "common/eval/conversation.h"

#include <charconv>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

#include "common/base/status_context.h"
#include "common/base/status_macros.h"
#include "common/eval/eval_case.h"
#include "common/eval/result_row.h"
#include "common/eval/result_writer.h"

namespace baton::eval {
namespace {

constexpr char kTurnMark = '#';

int TurnNumber(std::string_view turn_id) {
  const size_t mark = turn_id.rfind(kTurnMark);
  int number = 1;
  if (mark != std::string_view::npos) {
    std::from_chars(turn_id.data() + mark + 1, turn_id.data() + turn_id.size(), number);
  }
  return number;
}

std::string TurnId(std::string_view turn_id, int number) {
  const std::string_view conversation = ConversationId(turn_id);
  return absl::StrCat(absl::string_view(conversation.data(), conversation.size()), "#", number);
}

}  // namespace

std::string_view ConversationId(std::string_view turn_id) {
  return turn_id.substr(0, turn_id.rfind(kTurnMark));
}

std::optional<EvalCase> NextTurn(const EvalCase& turn, std::string_view output) {
  if (turn.follow_ups.empty()) {
    return std::nullopt;
  }
  EvalCase next = turn;
  next.id = TurnId(turn.id, TurnNumber(turn.id) + 1);
  next.messages.push_back({{"role", "assistant"}, {"content", output}});
  next.messages.push_back({{"role", "user"}, {"content", turn.follow_ups.front().question}});
  next.answer = turn.follow_ups.front().answer;
  next.follow_ups.erase(next.follow_ups.begin());
  return next;
}

bool FinishedTurns(const EvalCase& eval_case, const ResultWriter& writer) {
  const auto turns = static_cast<int>(eval_case.follow_ups.size()) + 1;
  return writer.Finished(turns == 1 ? eval_case.id : TurnId(eval_case.id, turns));
}

absl::StatusOr<bool> RunTurns(
    const EvalCase& eval_case,
    const std::function<absl::StatusOr<ResultRow>(const EvalCase& turn)>& answer,
    ResultWriter& writer) {
  std::vector<ResultRow> rows;
  bool correct = true;
  for (std::optional<EvalCase> turn = eval_case; turn.has_value();
       turn = NextTurn(*turn, rows.back().output)) {
    absl::StatusOr<ResultRow> row = answer(*turn);
    BATON_RETURN_IF_ERROR(WithContext(row.status(), absl::StrCat("case ", turn->id)));
    correct = correct && row->correct;
    rows.push_back(*std::move(row));
  }
  for (const ResultRow& row : rows) {
    if (!writer.Finished(row.id)) {  // an interrupted run may have written some
      BATON_RETURN_IF_ERROR(writer.Append(row));
    }
  }
  return correct;
}

}  // namespace baton::eval
