#include "common/text/jinja/evaluator.h"

#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"

#include "common/base/status_macros.h"
#include "common/text/concat.h"
#include "common/text/jinja/printing.h"
#include "common/text/jinja/python_text.h"

namespace baton::text::jinja {

absl::StatusOr<std::string> Evaluator::Render(const std::vector<Statement>& body) {
  std::string output;
  output_ = &output;
  scopes_.emplace_back();
  BATON_RETURN_IF_ERROR(RunBody(body).status());
  return output;
}

absl::StatusOr<Evaluator::Flow> Evaluator::RunBody(const std::vector<Statement>& body) {
  for (const Statement& statement : body) {
    BATON_ASSIGN_OR_RETURN(const Flow flow, Run(statement));
    if (flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

absl::StatusOr<Evaluator::Flow> Evaluator::Run(const Statement& statement) {
  BATON_RETURN_IF_ERROR(budget_.Charge(kNodeCost));
  if (++evaluation_depth_ > kMaxEvaluationDepth)
    return absl::InvalidArgumentError("the chat template nests too deeply");
  const absl::Cleanup leave = [this] { --evaluation_depth_; };
  switch (statement.kind) {
    case StatementKind::kText:
      BATON_RETURN_IF_ERROR(Print(statement.text));
      return Flow::kNormal;
    case StatementKind::kOutput:
      BATON_RETURN_IF_ERROR(RunOutput(statement));
      return Flow::kNormal;
    case StatementKind::kIf:
      return RunIf(statement);
    case StatementKind::kFor:
      return RunFor(statement);
    case StatementKind::kSet:
    case StatementKind::kSetBlock:
      BATON_RETURN_IF_ERROR(RunSet(statement));
      return Flow::kNormal;
    case StatementKind::kMacro: {
      Callable callable{Callable::Kind::kMacro, statement.text, Value(), &statement};
      SetVariable(statement.text, Value(std::make_shared<const Callable>(std::move(callable))));
      return Flow::kNormal;
    }
    case StatementKind::kGroup:
      return RunBody(statement.body);
    case StatementKind::kBreak:
      return Flow::kBreak;
    case StatementKind::kContinue:
      return Flow::kContinue;
  }
  return absl::InternalError("unknown statement");
}

absl::Status Evaluator::Print(std::string_view text) {
  BATON_RETURN_IF_ERROR(budget_.Charge(text.size()));
  if (text.size() > kMaxOutputBytes - output_->size()) {
    return absl::InvalidArgumentError(
        Concat("the rendered chat is over the limit of ", kMaxOutputBytes, " bytes"));
  }
  *output_ += text;
  return absl::OkStatus();
}

absl::Status Evaluator::RunOutput(const Statement& statement) {
  BATON_ASSIGN_OR_RETURN(const Value value, Evaluate(*statement.expression));
  if (value.IsString()) return Print(value.AsString());
  BATON_ASSIGN_OR_RETURN(const std::string text, ToText(value, &budget_));
  return Print(text);
}

absl::StatusOr<Evaluator::Flow> Evaluator::RunIf(const Statement& statement) {
  for (const Branch& branch : statement.branches) {
    if (branch.condition == nullptr) return RunBody(branch.body);
    BATON_ASSIGN_OR_RETURN(const Value condition, Evaluate(*branch.condition));
    if (condition.Truthy()) return RunBody(branch.body);
  }
  return Flow::kNormal;
}

absl::StatusOr<Evaluator::Flow> Evaluator::RunFor(const Statement& statement) {
  BATON_ASSIGN_OR_RETURN(const Value iterable, Evaluate(*statement.expression));
  BATON_ASSIGN_OR_RETURN(std::shared_ptr<const List> items, Iterate(iterable));
  scopes_.emplace_back();
  const absl::Cleanup leave = [this] { scopes_.pop_back(); };
  if (statement.condition != nullptr) {
    BATON_ASSIGN_OR_RETURN(items, FilterItems(statement, std::move(items)));
  }
  if (items->items.empty()) {
    scopes_.back().variables.clear();
    return RunBody(statement.else_body);
  }
  ++loop_depth_;
  absl::StatusOr<Flow> flow = RunLoop(statement, std::move(items));
  --loop_depth_;
  return flow;
}

absl::StatusOr<Evaluator::Flow> Evaluator::RunLoop(const Statement& statement,
                                                   std::shared_ptr<const List> items) {
  const auto loop = std::make_shared<LoopState>(LoopState{items, 0, loop_depth_});
  for (size_t i = 0; i < items->items.size(); ++i) {
    loop->index = i;
    scopes_.back().variables.clear();
    SetVariable("loop", Value(loop));
    BATON_RETURN_IF_ERROR(budget_.Charge(kNodeCost));
    BATON_RETURN_IF_ERROR(Unpack(statement.targets, items->items[i]));
    BATON_ASSIGN_OR_RETURN(const Flow flow, RunBody(statement.body));
    if (flow == Flow::kBreak) break;
  }
  return Flow::kNormal;
}

absl::StatusOr<std::shared_ptr<const List>> Evaluator::FilterItems(
    const Statement& statement, std::shared_ptr<const List> items) {
  std::vector<Value> kept;
  for (const Value& item : items->items) {
    scopes_.back().variables.clear();
    BATON_RETURN_IF_ERROR(Unpack(statement.targets, item));
    BATON_ASSIGN_OR_RETURN(const Value condition, Evaluate(*statement.condition));
    if (condition.Truthy()) kept.push_back(item);
  }
  BATON_ASSIGN_OR_RETURN(const Value list, NewList(std::move(kept)));
  return Iterate(list);
}

absl::Status Evaluator::RunSet(const Statement& statement) {
  if (statement.kind == StatementKind::kSetBlock) {
    BATON_ASSIGN_OR_RETURN(std::string text, Capture(statement.body));
    return Assign(statement, Value(std::move(text)));
  }
  BATON_ASSIGN_OR_RETURN(Value value, Evaluate(*statement.expression));
  return Assign(statement, std::move(value));
}

absl::Status Evaluator::Assign(const Statement& statement, Value value) {
  if (statement.attribute.empty()) return Unpack(statement.targets, value);
  const Value target = Lookup(statement.targets[0]);
  if (!target.IsNamespace()) {
    return absl::InvalidArgumentError(Concat("line ",
                                             statement.line,
                                             ": cannot set an attribute of '",
                                             statement.targets[0],
                                             "', which is no namespace"));
  }
  BATON_RETURN_IF_ERROR(budget_.Charge(kItemCost));
  target.AsNamespace()->attributes.Set(Value(statement.attribute), std::move(value));
  return absl::OkStatus();
}

absl::Status Evaluator::Unpack(const std::vector<std::string>& targets, const Value& value) {
  if (targets.size() == 1) {
    SetVariable(targets[0], value);
    return absl::OkStatus();
  }
  BATON_ASSIGN_OR_RETURN(const std::shared_ptr<const List> items, Iterate(value));
  if (items->items.size() != targets.size()) {
    return absl::InvalidArgumentError(
        Concat("cannot unpack ", items->items.size(), " values into ", targets.size(), " names"));
  }
  for (size_t i = 0; i < targets.size(); ++i) SetVariable(targets[i], items->items[i]);
  return absl::OkStatus();
}

absl::StatusOr<std::string> Evaluator::Capture(const std::vector<Statement>& body) {
  std::string text;
  std::string* const outer = std::exchange(output_, &text);
  const absl::Cleanup restore = [this, outer] { output_ = outer; };
  BATON_RETURN_IF_ERROR(RunBody(body).status());
  return text;
}

void Evaluator::SetVariable(std::string_view name, Value value) {
  for (auto& [existing, variable] : scopes_.back().variables) {
    if (existing == name) {
      variable = std::move(value);
      return;
    }
  }
  scopes_.back().variables.emplace_back(name, std::move(value));
}

Value Evaluator::Lookup(std::string_view name) const {
  const auto find_in = [name](const Scope& scope) -> const Value* {
    for (const auto& [existing, variable] : scope.variables) {
      if (existing == name) return &variable;
    }
    return nullptr;
  };
  for (size_t i = scopes_.size(); i-- > frame_;) {
    if (const Value* found = find_in(scopes_[i])) return *found;
  }
  if (frame_ > 0) {
    if (const Value* found = find_in(scopes_[0])) return *found;
  }
  if (const Value* found = context_.Find(name)) return *found;
  if (IsGlobalFunction(name)) {
    return Value(std::make_shared<const Callable>(
        Callable{Callable::Kind::kGlobal, std::string(name), Value(), nullptr}));
  }
  return Value::UndefinedNamed(name);
}

absl::StatusOr<std::shared_ptr<const List>> Evaluator::Iterate(const Value& value) {
  if (value.IsList()) return value.ListPointer();
  auto list = std::make_shared<List>();
  if (value.IsDict()) {
    BATON_RETURN_IF_ERROR(budget_.Charge(value.AsDict().items.size() * kItemCost));
    for (const auto& [key, member] : value.AsDict().items) list->items.push_back(key);
  } else if (value.IsString()) {
    BATON_RETURN_IF_ERROR(budget_.Charge(value.AsString().size() * kItemCost));
    for (const std::string_view c : SplitCodePoints(value.AsString())) list->items.emplace_back(c);
  } else if (!value.IsUndefined()) {
    return absl::InvalidArgumentError(
        Concat("a value of type ", value.TypeName(), " is not iterable"));
  }
  return std::shared_ptr<const List>(std::move(list));
}

absl::StatusOr<Value> Evaluator::NewList(std::vector<Value> items, bool is_tuple) {
  BATON_RETURN_IF_ERROR(budget_.Charge((items.size() + 1) * kItemCost));
  return MakeList(std::move(items), is_tuple);
}

absl::StatusOr<Value> Evaluator::NewString(std::string text) {
  BATON_RETURN_IF_ERROR(budget_.Charge(text.size() + kItemCost));
  return Value(std::move(text));
}

}  // namespace baton::text::jinja
