// Methods of str, list and dict that do not change their object.
#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <utility>

#include "absl/status/status.h"

#include "common/base/status_macros.h"
#include "common/text/concat.h"
#include "common/text/jinja/evaluator.h"
#include "common/text/jinja/python_text.h"

namespace baton::text::jinja {
namespace {

constexpr std::array<std::string_view, 23> kStringMethods = {
    "strip",      "lstrip",   "rstrip",       "split",        "rsplit",     "splitlines",
    "startswith", "endswith", "replace",      "upper",        "lower",      "title",
    "find",       "rfind",    "count",        "join",         "capitalize", "isdigit",
    "isalpha",    "isspace",  "removeprefix", "removesuffix", "index"};
constexpr std::array<std::string_view, 5> kDictMethods = {"items", "keys", "values", "get", "copy"};
// Methods that Python has but that would change the object; Jinja2's sandbox refuses them too.
constexpr std::array<std::string_view, 12> kMutators = {"append",
                                                        "extend",
                                                        "insert",
                                                        "remove",
                                                        "sort",
                                                        "reverse",
                                                        "pop",
                                                        "clear",
                                                        "update",
                                                        "popitem",
                                                        "setdefault",
                                                        "fromkeys"};
constexpr size_t kFirstDictMutator = 6;

bool IsOneOf(std::string_view name, std::span<const std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

absl::StatusOr<Value> ViewsToList(Evaluator& evaluator,
                                  const std::vector<std::string_view>& views,
                                  size_t bytes) {
  BATON_RETURN_IF_ERROR(evaluator.budget().Charge(bytes + views.size() * kItemCost));
  return evaluator.NewList(std::vector<Value>(views.begin(), views.end()));
}

absl::StatusOr<Value> Strip(Evaluator& evaluator,
                            std::string_view text,
                            std::string_view name,
                            const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(const BoundArguments bound, Bind(name, {"chars"}, arguments));
  const bool left = name != "rstrip";
  const bool right = name != "lstrip";
  if (!bound[0].has_value() || bound[0]->IsNone()) {
    if (left) text = StripLeft(text);
    if (right) text = StripRight(text);
  } else {
    BATON_ASSIGN_OR_RETURN(const std::string chars, StringArgument(bound[0], ""));
    BATON_RETURN_IF_ERROR(evaluator.budget().Charge(text.size() * (1 + chars.size() / 16)));
    if (left) text = StripLeft(text, chars);
    if (right) text = StripRight(text, chars);
  }
  return evaluator.NewString(std::string(text));
}

absl::StatusOr<Value> Split(Evaluator& evaluator,
                            std::string_view text,
                            std::string_view name,
                            const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(const BoundArguments bound, Bind(name, {"sep", "maxsplit"}, arguments));
  BATON_ASSIGN_OR_RETURN(const int64_t limit, IntArgument(bound[1], -1));
  if (!bound[0].has_value() || bound[0]->IsNone()) {
    if (name == "rsplit" && limit >= 0)
      return absl::InvalidArgumentError("rsplit with maxsplit needs a separator");
    return ViewsToList(evaluator, SplitWhitespace(text, limit), text.size());
  }
  BATON_ASSIGN_OR_RETURN(const std::string separator, StringArgument(bound[0], ""));
  if (separator.empty()) return absl::InvalidArgumentError("split: empty separator");
  BATON_RETURN_IF_ERROR(ChargeFind(text, separator, &evaluator.budget()));
  return ViewsToList(
      evaluator,
      name == "split" ? SplitOn(text, separator, limit) : SplitOnFromRight(text, separator, limit),
      text.size());
}

// startswith and endswith take one text or a tuple of them.
absl::StatusOr<Value> HasAffix(Evaluator& evaluator,
                               std::string_view text,
                               std::string_view name,
                               const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(const BoundArguments bound, Bind(name, {"affix"}, arguments));
  const Value affix = bound[0].value_or(Value());
  const std::vector<Value> candidates =
      affix.IsList() ? affix.AsList().items : std::vector<Value>{affix};
  for (const Value& candidate : candidates) {
    if (!candidate.IsString()) {
      return absl::InvalidArgumentError(Concat(name, " needs a str, got ", candidate.TypeName()));
    }
    BATON_RETURN_IF_ERROR(evaluator.budget().Charge(candidate.Cost()));
    const std::string& part = candidate.AsString();
    if (name == "startswith" ? text.starts_with(part) : text.ends_with(part)) return Value(true);
  }
  return Value(false);
}

absl::StatusOr<Value> Find(Evaluator& evaluator,
                           std::string_view text,
                           std::string_view name,
                           const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(const BoundArguments bound, Bind(name, {"sub"}, arguments));
  BATON_ASSIGN_OR_RETURN(const std::string needle, StringArgument(bound[0], ""));
  BATON_RETURN_IF_ERROR(ChargeFind(text, needle, &evaluator.budget()));
  if (name == "count") {
    if (needle.empty()) return Value(static_cast<int64_t>(CountCodePoints(text)) + 1);
    return Value(static_cast<int64_t>(SplitOn(text, needle, -1).size()) - 1);
  }
  const size_t found = name == "rfind" ? text.rfind(needle) : text.find(needle);
  if (found != std::string_view::npos)
    return Value(static_cast<int64_t>(CountCodePoints(text.substr(0, found))));
  if (name == "index") return absl::InvalidArgumentError("index: substring not found");
  return Value(int64_t{-1});
}

absl::StatusOr<Value> RemoveAffix(Evaluator& evaluator,
                                  std::string_view text,
                                  std::string_view name,
                                  const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(const BoundArguments bound, Bind(name, {"affix"}, arguments));
  BATON_ASSIGN_OR_RETURN(const std::string affix, StringArgument(bound[0], ""));
  if (name == "removeprefix" && text.starts_with(affix)) text.remove_prefix(affix.size());
  if (name == "removesuffix" && text.ends_with(affix)) text.remove_suffix(affix.size());
  return evaluator.NewString(std::string(text));
}

absl::StatusOr<Value> ChangeCase(Evaluator& evaluator,
                                 std::string_view text,
                                 std::string_view name,
                                 const Arguments& arguments) {
  BATON_RETURN_IF_ERROR(Bind(name, {}, arguments).status());
  BATON_RETURN_IF_ERROR(evaluator.budget().Charge(4 * text.size()));
  if (name == "upper") return Value(Upper(text));
  if (name == "lower") return Value(Lower(text));
  return Value(name == "title" ? Title(text) : Capitalize(text));
}

absl::StatusOr<Value> ConsistsOf(std::string_view text,
                                 std::string_view name,
                                 const Arguments& arguments) {
  BATON_RETURN_IF_ERROR(Bind(name, {}, arguments).status());
  const std::vector<std::string_view> points = SplitCodePoints(text);
  const bool all = std::all_of(
      points.begin(), points.end(), [name](std::string_view c) { return IsOfClass(c, name); });
  return Value(!points.empty() && all);
}

absl::StatusOr<Value> CallStringMethod(Evaluator& evaluator,
                                       const Value& object,
                                       std::string_view name,
                                       const Arguments& arguments) {
  const std::string& text = object.AsString();
  BATON_RETURN_IF_ERROR(evaluator.budget().Charge(text.size()));
  if (name == "strip" || name == "lstrip" || name == "rstrip")
    return Strip(evaluator, text, name, arguments);
  if (name == "split" || name == "rsplit") return Split(evaluator, text, name, arguments);
  if (name == "startswith" || name == "endswith") return HasAffix(evaluator, text, name, arguments);
  if (name == "find" || name == "rfind" || name == "index" || name == "count")
    return Find(evaluator, text, name, arguments);
  if (name == "removeprefix" || name == "removesuffix")
    return RemoveAffix(evaluator, text, name, arguments);
  if (name == "isdigit" || name == "isalpha" || name == "isspace")
    return ConsistsOf(text, name, arguments);
  if (name == "replace") {
    BATON_ASSIGN_OR_RETURN(const BoundArguments bound,
                           Bind(name, {"old", "new", "count"}, arguments));
    return ReplaceText(evaluator, text, bound);
  }
  if (name == "join") {
    BATON_ASSIGN_OR_RETURN(const BoundArguments bound, Bind(name, {"iterable"}, arguments));
    return JoinText(evaluator, bound[0].value_or(Value()), text);
  }
  if (name == "splitlines") {
    BATON_ASSIGN_OR_RETURN(const BoundArguments bound, Bind(name, {"keepends"}, arguments));
    return ViewsToList(evaluator, SplitLines(text, BoolArgument(bound[0], false)), text.size());
  }
  return ChangeCase(evaluator, text, name, arguments);
}

absl::StatusOr<Value> CallDictMethod(Evaluator& evaluator,
                                     const Value& object,
                                     std::string_view name,
                                     const Arguments& arguments) {
  if (name == "get") {
    BATON_ASSIGN_OR_RETURN(const BoundArguments bound, Bind(name, {"key", "default"}, arguments));
    const Value key = bound[0].value_or(Value());
    BATON_RETURN_IF_ERROR(
        evaluator.budget().Charge(key.IsString() ? key.Cost() : object.AsDict().items.size()));
    const Value* found = object.AsDict().Find(key);
    return found != nullptr ? *found : bound[1].value_or(Value(None{}));
  }
  BATON_RETURN_IF_ERROR(Bind(name, {}, arguments).status());
  if (name == "copy") return object;
  if (name == "items") return evaluator.ApplyFilter("items", object, {});
  BATON_RETURN_IF_ERROR(evaluator.budget().Charge(object.AsDict().items.size() * kItemCost));
  std::vector<Value> items;
  for (const auto& [key, member] : object.AsDict().items)
    items.push_back(name == "keys" ? key : member);
  return evaluator.NewList(std::move(items));
}

absl::StatusOr<Value> CallListMethod(Evaluator& evaluator,
                                     const Value& object,
                                     std::string_view name,
                                     const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(const BoundArguments bound, Bind(name, {"value"}, arguments));
  const Value wanted = bound[0].value_or(Value());
  int64_t count = 0;
  const std::vector<Value>& items = object.AsList().items;
  for (size_t i = 0; i < items.size(); ++i) {
    BATON_RETURN_IF_ERROR(evaluator.budget().Charge(std::min(items[i].Cost(), wanted.Cost())));
    if (!Equals(items[i], wanted)) continue;
    if (name == "index") return Value(static_cast<int64_t>(i));
    ++count;
  }
  if (name == "index") return absl::InvalidArgumentError("index: the value is not in the list");
  return Value(count);
}

}  // namespace

bool HasMethod(const Value& object, std::string_view name) {
  if (object.IsString()) return IsOneOf(name, kStringMethods);
  if (object.IsDict())
    return IsOneOf(name, kDictMethods) ||
           IsOneOf(name, std::span(kMutators).subspan(kFirstDictMutator));
  if (object.IsList()) return name == "index" || name == "count" || IsOneOf(name, kMutators);
  return false;
}

absl::StatusOr<Value> CallMethod(Evaluator& evaluator,
                                 const Value& object,
                                 std::string_view name,
                                 const Arguments& arguments) {
  if (!object.IsString() && IsOneOf(name, kMutators)) {
    return absl::InvalidArgumentError(
        Concat("the method ", name, " would change its object, which a chat template may not"));
  }
  if (object.IsString()) return CallStringMethod(evaluator, object, name, arguments);
  if (object.IsDict()) return CallDictMethod(evaluator, object, name, arguments);
  return CallListMethod(evaluator, object, name, arguments);
}

}  // namespace baton::text::jinja
