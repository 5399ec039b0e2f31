#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"

#include "common/base/status_macros.h"
#include "common/text/concat.h"
#include "common/text/jinja/evaluator.h"
#include "common/text/jinja/printing.h"
#include "common/text/jinja/python_text.h"

namespace baton::text::jinja {

absl::StatusOr<Value> Evaluator::Evaluate(const Expression& expression) {
  BATON_RETURN_IF_ERROR(budget_.Charge(kNodeCost));
  if (++evaluation_depth_ > kMaxEvaluationDepth)
    return absl::InvalidArgumentError("the chat template nests too deeply");
  const absl::Cleanup leave = [this] { --evaluation_depth_; };
  return EvaluateNode(expression);
}

absl::StatusOr<Value> Evaluator::EvaluateNode(const Expression& expression) {
  switch (expression.kind) {
    case ExpressionKind::kConstant:
      return expression.constant;
    case ExpressionKind::kName:
      return Lookup(expression.text);
    case ExpressionKind::kList:
    case ExpressionKind::kTuple:
      return EvaluateSequence(expression);
    case ExpressionKind::kDict:
      return EvaluateDict(expression);
    case ExpressionKind::kUnary:
      return EvaluateUnary(expression);
    case ExpressionKind::kBinary:
      return EvaluateBinary(expression);
    case ExpressionKind::kAnd:
    case ExpressionKind::kOr:
      return EvaluateLogic(expression);
    case ExpressionKind::kCompare:
      return EvaluateCompare(expression);
    case ExpressionKind::kConcat:
      return EvaluateConcat(expression);
    case ExpressionKind::kConditional:
      return EvaluateConditional(expression);
    case ExpressionKind::kAttribute: {
      BATON_ASSIGN_OR_RETURN(const Value object, Evaluate(*expression.operands[0]));
      return GetAttribute(object, expression.text);
    }
    case ExpressionKind::kSubscript: {
      BATON_ASSIGN_OR_RETURN(const Value object, Evaluate(*expression.operands[0]));
      BATON_ASSIGN_OR_RETURN(const Value key, Evaluate(*expression.operands[1]));
      return GetItem(object, key);
    }
    case ExpressionKind::kSlice:
      return EvaluateSlice(expression);
    case ExpressionKind::kCall:
      return EvaluateCall(expression);
    case ExpressionKind::kFilter:
    case ExpressionKind::kTest:
      return EvaluateFilterOrTest(expression);
  }
  return absl::InternalError("unknown expression");
}

absl::StatusOr<Value> Evaluator::EvaluateSequence(const Expression& expression) {
  std::vector<Value> items;
  items.reserve(expression.operands.size());
  for (const ExpressionPtr& operand : expression.operands) {
    BATON_ASSIGN_OR_RETURN(Value item, Evaluate(*operand));
    items.push_back(std::move(item));
  }
  return NewList(std::move(items), expression.kind == ExpressionKind::kTuple);
}

absl::StatusOr<Value> Evaluator::EvaluateDict(const Expression& expression) {
  Dict dict;
  for (size_t i = 0; i + 1 < expression.operands.size(); i += 2) {
    BATON_ASSIGN_OR_RETURN(Value key, Evaluate(*expression.operands[i]));
    BATON_ASSIGN_OR_RETURN(Value value, Evaluate(*expression.operands[i + 1]));
    if (key.IsList() || key.IsDict()) {
      return absl::InvalidArgumentError(Concat("a ", key.TypeName(), " cannot be a dict key"));
    }
    // A key that is not text is compared with every key before it.
    BATON_RETURN_IF_ERROR(
        budget_.Charge(2 * kItemCost + (key.IsString() ? key.Cost() : dict.items.size())));
    dict.Set(std::move(key), std::move(value));
  }
  return MakeDict(std::move(dict));
}

absl::StatusOr<Value> Evaluator::EvaluateUnary(const Expression& expression) {
  BATON_ASSIGN_OR_RETURN(const Value value, Evaluate(*expression.operands[0]));
  if (expression.text == "not") return Value(!value.Truthy());
  if (!value.IsNumber()) {
    return absl::InvalidArgumentError(
        Concat("line ", expression.line, ": a value of type ", value.TypeName(), " has no sign"));
  }
  if (expression.text == "+") return value.IsDouble() ? value : Value(value.IntValue());
  if (value.IsDouble()) return Value(-value.AsDouble());
  return Arithmetic("-", Value(int64_t{0}), value, *this);
}

absl::StatusOr<Value> Evaluator::EvaluateBinary(const Expression& expression) {
  BATON_ASSIGN_OR_RETURN(const Value left, Evaluate(*expression.operands[0]));
  BATON_ASSIGN_OR_RETURN(const Value right, Evaluate(*expression.operands[1]));
  return Arithmetic(expression.text, left, right, *this);
}

// As in Python, the result is one of the operands.
absl::StatusOr<Value> Evaluator::EvaluateLogic(const Expression& expression) {
  BATON_ASSIGN_OR_RETURN(Value left, Evaluate(*expression.operands[0]));
  if (left.Truthy() == (expression.kind == ExpressionKind::kOr)) return left;
  return Evaluate(*expression.operands[1]);
}

absl::StatusOr<Value> Evaluator::EvaluateCompare(const Expression& expression) {
  BATON_ASSIGN_OR_RETURN(Value left, Evaluate(*expression.operands[0]));
  for (size_t i = 0; i < expression.operators.size(); ++i) {
    BATON_ASSIGN_OR_RETURN(Value right, Evaluate(*expression.operands[i + 1]));
    BATON_ASSIGN_OR_RETURN(const bool holds, Compare(expression.operators[i], left, right));
    if (!holds) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

absl::StatusOr<bool> Evaluator::Compare(std::string_view op,
                                        const Value& left,
                                        const Value& right) {
  if (op == "in") return Contains(right, left);
  if (op == "not in") {
    BATON_ASSIGN_OR_RETURN(const bool contained, Contains(right, left));
    return !contained;
  }
  BATON_RETURN_IF_ERROR(budget_.Charge(std::min(left.Cost(), right.Cost())));
  if (op == "==") return Equals(left, right);
  if (op == "!=") return !Equals(left, right);
  const bool swap = op == ">" || op == "<=";
  BATON_ASSIGN_OR_RETURN(const bool less, swap ? Less(right, left) : Less(left, right));
  return op == "<" || op == ">" ? less : !less;
}

absl::StatusOr<bool> Evaluator::Contains(const Value& container, const Value& item) {
  if (container.IsString()) {
    if (!item.IsString()) {
      return absl::InvalidArgumentError(Concat("'in <str>' needs a str, got ", item.TypeName()));
    }
    BATON_RETURN_IF_ERROR(ChargeFind(container.AsString(), item.AsString(), &budget_));
    return container.AsString().find(item.AsString()) != std::string::npos;
  }
  if (container.IsDict()) {
    BATON_RETURN_IF_ERROR(
        budget_.Charge(item.IsString() ? item.Cost() : container.AsDict().items.size()));
    return container.AsDict().Find(item) != nullptr;
  }
  BATON_ASSIGN_OR_RETURN(const std::shared_ptr<const List> items, Iterate(container));
  for (const Value& member : items->items) {
    BATON_RETURN_IF_ERROR(budget_.Charge(std::min(member.Cost(), item.Cost())));
    if (Equals(member, item)) return true;
  }
  return false;
}

absl::StatusOr<Value> Evaluator::EvaluateConcat(const Expression& expression) {
  std::string text;
  for (const ExpressionPtr& operand : expression.operands) {
    BATON_ASSIGN_OR_RETURN(const Value value, Evaluate(*operand));
    BATON_ASSIGN_OR_RETURN(const std::string part, ToText(value, &budget_));
    text += part;
  }
  return NewString(std::move(text));
}

absl::StatusOr<Value> Evaluator::EvaluateConditional(const Expression& expression) {
  BATON_ASSIGN_OR_RETURN(const Value condition, Evaluate(*expression.operands[1]));
  if (condition.Truthy()) return Evaluate(*expression.operands[0]);
  if (expression.operands[2] == nullptr) return Value();
  return Evaluate(*expression.operands[2]);
}

namespace {

// Bounds of a slice over `size` items, as Python's slice.indices.
struct SliceRange {
  int64_t start = 0;
  int64_t stop = 0;
  int64_t step = 1;
};

int64_t ClampIndex(int64_t index, int64_t size, int64_t low, int64_t high) {
  return std::clamp(index < 0 ? index + size : index, low, high);
}

absl::StatusOr<SliceRange> ResolveSlice(const Value& start,
                                        const Value& stop,
                                        const Value& step,
                                        int64_t size) {
  const auto given = [](const Value& v) -> std::optional<Value> {
    return v.IsUndefined() ? std::nullopt : std::optional(v);
  };
  constexpr int64_t kAbsent = std::numeric_limits<int64_t>::min();
  BATON_ASSIGN_OR_RETURN(const int64_t from, IntArgument(given(start), kAbsent));
  BATON_ASSIGN_OR_RETURN(const int64_t to, IntArgument(given(stop), kAbsent));
  SliceRange range;
  BATON_ASSIGN_OR_RETURN(range.step, IntArgument(given(step), 1));
  if (range.step == 0) return absl::InvalidArgumentError("a slice step cannot be zero");
  // A step beyond the size takes one item like the size itself, and cannot overflow.
  range.step = std::clamp(range.step, -size - 1, size + 1);
  const bool backwards = range.step < 0;
  const int64_t low = backwards ? -1 : 0;
  const int64_t high = backwards ? size - 1 : size;
  range.start = from == kAbsent ? (backwards ? high : low) : ClampIndex(from, size, low, high);
  range.stop = to == kAbsent ? (backwards ? low : high) : ClampIndex(to, size, low, high);
  return range;
}

template <typename Items, typename Take>
void TakeSlice(const Items& items, const SliceRange& range, Take take) {
  for (int64_t i = range.start; range.step > 0 ? i < range.stop : i > range.stop; i += range.step) {
    take(items[static_cast<size_t>(i)]);
  }
}

}  // namespace

absl::StatusOr<Value> Evaluator::EvaluateSlice(const Expression& expression) {
  BATON_ASSIGN_OR_RETURN(const Value object, Evaluate(*expression.operands[0]));
  std::array<Value, 3> bounds;
  for (size_t i = 0; i < 3; ++i) {
    if (expression.operands[i + 1] == nullptr) continue;
    BATON_ASSIGN_OR_RETURN(bounds[i], Evaluate(*expression.operands[i + 1]));
  }
  if (object.IsList()) {
    const List& list = object.AsList();
    BATON_ASSIGN_OR_RETURN(
        const SliceRange range,
        ResolveSlice(bounds[0], bounds[1], bounds[2], static_cast<int64_t>(list.items.size())));
    std::vector<Value> items;
    TakeSlice(list.items, range, [&](const Value& item) { items.push_back(item); });
    return NewList(std::move(items), list.is_tuple);
  }
  if (object.IsString()) {
    BATON_RETURN_IF_ERROR(budget_.Charge(object.AsString().size()));
    const std::vector<std::string_view> points = SplitCodePoints(object.AsString());
    BATON_ASSIGN_OR_RETURN(
        const SliceRange range,
        ResolveSlice(bounds[0], bounds[1], bounds[2], static_cast<int64_t>(points.size())));
    std::string text;
    TakeSlice(points, range, [&](std::string_view c) { text += c; });
    return NewString(std::move(text));
  }
  if (object.IsUndefined()) {
    return absl::InvalidArgumentError(
        Concat("line ", expression.line, ": '", object.UndefinedName(), "' is undefined"));
  }
  return Value();
}

absl::StatusOr<Arguments> Evaluator::EvaluateArguments(const Expression& expression) {
  Arguments arguments;
  for (size_t i = 1; i < expression.operands.size(); ++i) {
    BATON_ASSIGN_OR_RETURN(Value value, Evaluate(*expression.operands[i]));
    arguments.positional.push_back(std::move(value));
  }
  for (const auto& [name, argument] : expression.keywords) {
    BATON_ASSIGN_OR_RETURN(Value value, Evaluate(*argument));
    arguments.keywords.emplace_back(name, std::move(value));
  }
  return arguments;
}

absl::StatusOr<Value> Evaluator::EvaluateFilterOrTest(const Expression& expression) {
  BATON_ASSIGN_OR_RETURN(const Value value, Evaluate(*expression.operands[0]));
  BATON_ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(expression));
  if (expression.kind == ExpressionKind::kFilter)
    return ApplyFilter(expression.text, value, arguments);
  BATON_ASSIGN_OR_RETURN(const bool holds, ApplyTest(expression.text, value, arguments));
  return Value(holds != expression.negated);
}

absl::StatusOr<Value> Evaluator::EvaluateCall(const Expression& expression) {
  BATON_ASSIGN_OR_RETURN(const Value callee, Evaluate(*expression.operands[0]));
  BATON_ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(expression));
  if (callee.IsUndefined()) {
    return absl::InvalidArgumentError(
        Concat("line ", expression.line, ": '", callee.UndefinedName(), "' is undefined"));
  }
  return Call(callee, arguments);
}

}  // namespace baton::text::jinja
