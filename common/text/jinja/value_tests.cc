// The tests of the chat template language: `value is name(arguments)`.
#include <algorithm>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"

#include "common/base/status_macros.h"
#include "common/text/concat.h"
#include "common/text/jinja/evaluator.h"
#include "common/text/jinja/python_text.h"

namespace baton::text::jinja {
namespace {

using KindTest = bool (*)(const Value&);

bool IsCase(const Value& value, bool upper) {
  if (!value.IsString()) return false;
  const std::string& text = value.AsString();
  return Upper(text) != Lower(text) && (upper ? Upper(text) : Lower(text)) == text;
}

// Tests without an argument.
const absl::flat_hash_map<absl::string_view, KindTest>& KindTests() {
  static const auto* const kTests = new absl::flat_hash_map<absl::string_view, KindTest>{
      {"defined", [](const Value& v) { return !v.IsUndefined(); }},
      {"undefined", [](const Value& v) { return v.IsUndefined(); }},
      {"none", [](const Value& v) { return v.IsNone(); }},
      {"boolean", [](const Value& v) { return v.IsBool(); }},
      {"true", [](const Value& v) { return v.IsBool() && v.AsBool(); }},
      {"false", [](const Value& v) { return v.IsBool() && !v.AsBool(); }},
      {"integer", [](const Value& v) { return v.IsInt(); }},
      {"float", [](const Value& v) { return v.IsDouble(); }},
      {"number", [](const Value& v) { return v.IsNumber(); }},
      {"string", [](const Value& v) { return v.IsString(); }},
      {"mapping", [](const Value& v) { return v.IsDict(); }},
      {"sequence", [](const Value& v) { return v.IsString() || v.IsList() || v.IsDict(); }},
      {"iterable",
       [](const Value& v) { return v.IsString() || v.IsList() || v.IsDict() || v.IsUndefined(); }},
      {"callable", [](const Value& v) { return v.IsCallable(); }},
      {"upper", [](const Value& v) { return IsCase(v, /*upper=*/true); }},
      {"lower", [](const Value& v) { return IsCase(v, /*upper=*/false); }},
  };
  return *kTests;
}

// The comparison that a test name stands for, empty when it is none.
std::string_view ComparisonOf(std::string_view name) {
  if (name == "equalto" || name == "eq" || name == "==") return "==";
  if (name == "ne" || name == "!=") return "!=";
  if (name == "gt" || name == "greaterthan") return ">";
  if (name == "ge") return ">=";
  if (name == "lt" || name == "lessthan") return "<";
  if (name == "le") return "<=";
  if (name == "in") return "in";
  return {};
}

absl::StatusOr<bool> DivisibleBy(const Value& value, int64_t divisor) {
  if (!value.IsInt() && !value.IsBool()) {
    return absl::InvalidArgumentError(Concat("expected an int, got ", value.TypeName()));
  }
  if (divisor == 0) return absl::InvalidArgumentError("division by zero in the chat template");
  return divisor == -1 || value.IntValue() % divisor == 0;
}

}  // namespace

absl::StatusOr<bool> Evaluator::ApplyTest(std::string_view name,
                                          const Value& value,
                                          const Arguments& arguments) {
  const auto kind_test = KindTests().find(ToAbsl(name));
  if (kind_test != KindTests().end()) {
    BATON_RETURN_IF_ERROR(Bind(name, {}, arguments).status());
    if (name == "upper" || name == "lower")
      BATON_RETURN_IF_ERROR(budget_.Charge(16 * value.Cost()));
    return kind_test->second(value);
  }
  if (name == "odd" || name == "even") {
    BATON_RETURN_IF_ERROR(Bind(name, {}, arguments).status());
    BATON_ASSIGN_OR_RETURN(const bool even, DivisibleBy(value, 2));
    return even == (name == "even");
  }
  BATON_ASSIGN_OR_RETURN(const BoundArguments bound, Bind(name, {"other"}, arguments));
  const std::string_view comparison = ComparisonOf(name);
  if (!comparison.empty() || name == "sameas" || name == "divisibleby") {
    if (!bound[0].has_value())
      return absl::InvalidArgumentError(Concat("the test '", name, "' needs an argument"));
    if (!comparison.empty()) return Compare(comparison, value, *bound[0]);
    if (name == "sameas")
      return value.TypeName() == bound[0]->TypeName() &&
             Compare("==", value, *bound[0]).value_or(false);
    BATON_ASSIGN_OR_RETURN(const int64_t divisor, IntArgument(bound[0], 0));
    return DivisibleBy(value, divisor);
  }
  return absl::InvalidArgumentError(Concat("the test '", name, "' is not supported"));
}

}  // namespace baton::text::jinja
