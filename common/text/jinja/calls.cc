#include <array>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"

#include "common/base/status_macros.h"
#include "common/text/concat.h"
#include "common/text/jinja/evaluator.h"
#include "common/text/jinja/printing.h"
#include "common/text/jinja/python_text.h"

namespace baton::text::jinja {
namespace {

constexpr int64_t kMaxRange = 100000;  // Jinja2's sandbox has the same limit (MAX_RANGE)
constexpr size_t kMaxTimeFormatBytes = 256;
constexpr std::array<std::string_view, 5> kGlobals = {
    "range", "namespace", "dict", "raise_exception", "strftime_now"};

// loop.previtem and loop.nextitem: undefined at the ends.
Value LoopNeighbour(const LoopState& loop, size_t index) {
  return index < loop.items->items.size() ? loop.items->items[index] : Value();
}

Value LoopAttribute(const Value& object, std::string_view name) {
  const LoopState& loop = object.AsLoop();
  const auto index = static_cast<int64_t>(loop.index);
  const auto length = static_cast<int64_t>(loop.items->items.size());
  if (name == "index") return Value(index + 1);
  if (name == "index0") return Value(index);
  if (name == "revindex") return Value(length - index);
  if (name == "revindex0") return Value(length - index - 1);
  if (name == "first") return Value(index == 0);
  if (name == "last") return Value(index + 1 == length);
  if (name == "length") return Value(length);
  if (name == "depth") return Value(loop.nesting);
  if (name == "depth0") return Value(loop.nesting - 1);
  if (name == "previtem") return LoopNeighbour(loop, loop.index - 1);
  if (name == "nextitem") return LoopNeighbour(loop, loop.index + 1);
  if (name == "cycle") {
    return Value(std::make_shared<const Callable>(
        Callable{Callable::Kind::kLoopCycle, "cycle", object, nullptr}));
  }
  return Value::UndefinedNamed(name);
}

Value BoundMethod(const Value& object, std::string_view name) {
  return Value(std::make_shared<const Callable>(
      Callable{Callable::Kind::kMethod, std::string(name), object, nullptr}));
}

}  // namespace

bool IsGlobalFunction(std::string_view name) {
  for (const std::string_view global : kGlobals) {
    if (global == name) return true;
  }
  return false;
}

absl::Status ChargeFind(std::string_view text, std::string_view needle, Budget* budget) {
  constexpr size_t kShortNeedle = 256;  // below it the search is about linear in practice
  const size_t per_byte = needle.size() > kShortNeedle ? needle.size() / 64 : 1;
  return budget->Charge(text.size() * per_byte + needle.size());
}

// object.name looks for an attribute first and for a member second, object['name'] the other way
// round; so a dict's methods hide members of the same name only in the first form. As in Jinja2.
absl::StatusOr<Value> Evaluator::GetAttribute(const Value& object, std::string_view name) {
  if (object.IsUndefined()) {
    return absl::InvalidArgumentError(
        Concat("'", object.UndefinedName(), "' is undefined, so it has no '", name, "'"));
  }
  BATON_RETURN_IF_ERROR(budget_.Charge(kNodeCost));
  if (HasMethod(object, name)) return BoundMethod(object, name);
  const Value* found = nullptr;
  if (object.IsDict()) found = object.AsDict().Find(name);
  if (object.IsNamespace()) found = object.AsNamespace()->attributes.Find(name);
  if (found != nullptr) return *found;
  if (object.IsLoop()) return LoopAttribute(object, name);
  return Value::UndefinedNamed(name);
}

absl::StatusOr<Value> Evaluator::GetItem(const Value& object, const Value& key) {
  if (object.IsDict()) {
    BATON_RETURN_IF_ERROR(
        budget_.Charge(key.IsString() ? key.Cost() : object.AsDict().items.size()));
    if (const Value* found = object.AsDict().Find(key)) return *found;
  }
  if (key.IsString()) return GetAttribute(object, key.AsString());
  if (object.IsUndefined()) {
    return absl::InvalidArgumentError(Concat("'", object.UndefinedName(), "' is undefined"));
  }
  if (!key.IsInt() && !key.IsBool()) return Value();
  int64_t index = key.IntValue();
  if (object.IsList()) {
    const auto size = static_cast<int64_t>(object.AsList().items.size());
    if (index < 0) index += size;
    if (index >= 0 && index < size) return object.AsList().items[static_cast<size_t>(index)];
  }
  if (object.IsString()) {
    BATON_RETURN_IF_ERROR(budget_.Charge(object.AsString().size()));
    const std::vector<std::string_view> points = SplitCodePoints(object.AsString());
    const auto size = static_cast<int64_t>(points.size());
    if (index < 0) index += size;
    if (index >= 0 && index < size) return Value(points[static_cast<size_t>(index)]);
  }
  return Value();
}

absl::StatusOr<Value> Evaluator::Call(const Value& callee, const Arguments& arguments) {
  if (!callee.IsCallable()) {
    return absl::InvalidArgumentError(
        Concat("a value of type ", callee.TypeName(), " cannot be called"));
  }
  const Callable& callable = callee.AsCallable();
  switch (callable.kind) {
    case Callable::Kind::kGlobal:
      return CallGlobal(callable.name, arguments);
    case Callable::Kind::kMethod:
      return CallMethod(*this, callable.self, callable.name, arguments);
    case Callable::Kind::kLoopCycle:
      if (arguments.positional.empty())
        return absl::InvalidArgumentError("loop.cycle needs arguments");
      return arguments.positional[callable.self.AsLoop().index % arguments.positional.size()];
    case Callable::Kind::kMacro:
      return CallMacro(*callable.macro, arguments);
  }
  return absl::InternalError("unknown callable");
}

absl::StatusOr<Value> Evaluator::CallGlobal(std::string_view name, const Arguments& arguments) {
  if (name == "range") return MakeRange(arguments);
  if (name == "namespace") return MakeNamespace(arguments);
  if (name == "strftime_now") return FormatNow(arguments);
  if (name == "raise_exception") {
    BATON_ASSIGN_OR_RETURN(const BoundArguments bound, Bind(name, {"message"}, arguments));
    BATON_ASSIGN_OR_RETURN(const std::string message, ToText(bound[0].value_or(Value()), &budget_));
    return absl::InvalidArgumentError(message);
  }
  Dict dict;  // dict(a=1, b=2)
  if (!arguments.positional.empty())
    return absl::InvalidArgumentError("dict takes keyword arguments only");
  for (const auto& [key, value] : arguments.keywords) dict.Set(Value(key), value);
  return MakeDict(std::move(dict));
}

absl::StatusOr<Value> Evaluator::MakeNamespace(const Arguments& arguments) {
  BATON_RETURN_IF_ERROR(budget_.Charge((1 + arguments.keywords.size()) * kItemCost * 4));
  Namespace& created = namespaces_.emplace_back();
  for (const Value& value : arguments.positional) {
    if (!value.IsDict())
      return absl::InvalidArgumentError("namespace takes a dict or keyword arguments");
    BATON_RETURN_IF_ERROR(budget_.Charge(value.AsDict().items.size() * kItemCost));
    for (const auto& [key, member] : value.AsDict().items) created.attributes.Set(key, member);
  }
  for (const auto& [key, value] : arguments.keywords) created.attributes.Set(Value(key), value);
  return Value(&created);
}

absl::StatusOr<Value> Evaluator::MakeRange(const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(const BoundArguments bound,
                         Bind("range", {"start", "stop", "step"}, arguments));
  BATON_ASSIGN_OR_RETURN(const int64_t first, IntArgument(bound[0], 0));
  BATON_ASSIGN_OR_RETURN(const int64_t second, IntArgument(bound[1], 0));
  BATON_ASSIGN_OR_RETURN(const int64_t step, IntArgument(bound[2], 1));
  if (!bound[0].has_value() || step == 0)
    return absl::InvalidArgumentError("range needs a stop and a step other than 0");
  const int64_t start = bound[1].has_value() ? first : 0;
  const int64_t stop = bound[1].has_value() ? second : first;
  std::vector<Value> items;
  int64_t i = start;
  while (step > 0 ? i < stop : i > stop) {
    if (static_cast<int64_t>(items.size()) == kMaxRange) {
      return absl::InvalidArgumentError(Concat("range of more than ", kMaxRange, " numbers"));
    }
    items.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return NewList(std::move(items));
}

absl::StatusOr<Value> Evaluator::FormatNow(const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(const BoundArguments bound, Bind("strftime_now", {"format"}, arguments));
  BATON_ASSIGN_OR_RETURN(const std::string format, StringArgument(bound[0], ""));
  if (format.size() > kMaxTimeFormatBytes)
    return absl::InvalidArgumentError("strftime_now: the format is too long");
  return NewString(absl::FormatTime(format, now_, absl::UTCTimeZone()));
}

absl::StatusOr<Value> Evaluator::CallMacro(const Statement& macro, const Arguments& arguments) {
  if (++macro_depth_ > kMaxMacroDepth)
    return absl::InvalidArgumentError("macros call each other too deeply");
  const absl::Cleanup leave_macro = [this] { --macro_depth_; };
  if (arguments.positional.size() > macro.parameters.size()) {
    return absl::InvalidArgumentError(
        Concat("macro ", macro.text, " takes at most ", macro.parameters.size(), " arguments"));
  }
  const size_t outer_frame = std::exchange(frame_, scopes_.size());
  scopes_.emplace_back();
  const absl::Cleanup restore = [this, outer_frame] {
    scopes_.pop_back();
    frame_ = outer_frame;
  };
  for (const auto& [name, value] : arguments.keywords) {
    bool known = false;
    for (size_t i = arguments.positional.size(); i < macro.parameters.size(); ++i)
      known |= macro.parameters[i].first == name;
    if (!known)
      return absl::InvalidArgumentError(
          Concat("macro ", macro.text, " has no argument named ", name));
  }
  for (size_t i = 0; i < macro.parameters.size(); ++i) {
    const auto& [name, fallback] = macro.parameters[i];
    Value value = Value::UndefinedNamed(name);
    bool given = i < arguments.positional.size();
    if (given) value = arguments.positional[i];
    for (const auto& [keyword, argument] : arguments.keywords) {
      if (keyword != name) continue;
      value = argument;
      given = true;
    }
    if (!given && fallback != nullptr) {
      BATON_ASSIGN_OR_RETURN(value, Evaluate(*fallback));
    }
    SetVariable(name, std::move(value));
  }
  BATON_ASSIGN_OR_RETURN(std::string text, Capture(macro.body));
  return Value(std::move(text));
}

}  // namespace baton::text::jinja
