// Filters on single values.
#include <array>
#include <charconv>
#include <cmath>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"

#include "common/base/status_macros.h"
#include "common/text/concat.h"
#include "common/text/jinja/filters.h"
#include "common/text/jinja/python_text.h"

namespace baton::text::jinja {
namespace {

// default(value, boolean): for undefined, and with `boolean` for anything that is not true.
absl::StatusOr<Value> Default(Evaluator&,
                              std::string_view name,
                              const Value& value,
                              const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(const BoundArguments bound,
                         Bind(name, {"default_value", "boolean"}, arguments));
  const bool replace = value.IsUndefined() || (BoolArgument(bound[1], false) && !value.Truthy());
  return replace ? bound[0].value_or(Value("")) : value;
}

template <typename Number>
bool ParseNumber(std::string_view text, Number* number) {
  text = StripRight(StripLeft(text));
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), *number);
  return !text.empty() && parsed.ec == std::errc() && parsed.ptr == text.data() + text.size();
}

bool DoubleToInt(double value, int64_t* number) {
  constexpr double kLimit = 9223372036854775808.0;  // 2^63
  if (!(value > -kLimit && value < kLimit)) return false;
  *number = static_cast<int64_t>(value);
  return true;
}

// int(default): the number, or the default for what is no number.
absl::StatusOr<Value> ToInt(Evaluator&,
                            std::string_view name,
                            const Value& value,
                            const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(const BoundArguments bound, Bind(name, {"default"}, arguments));
  int64_t number = 0;
  if (value.IsInt() || value.IsBool()) return Value(value.IntValue());
  if (value.IsDouble() && DoubleToInt(value.AsDouble(), &number)) return Value(number);
  if (value.IsString()) {
    if (ParseNumber(value.AsString(), &number)) return Value(number);
    double real = 0;
    if (ParseNumber(value.AsString(), &real) && DoubleToInt(real, &number)) return Value(number);
  }
  return bound[0].value_or(Value(int64_t{0}));
}

absl::StatusOr<Value> ToFloat(Evaluator&,
                              std::string_view name,
                              const Value& value,
                              const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(const BoundArguments bound, Bind(name, {"default"}, arguments));
  double number = 0;
  if (value.IsNumber()) return Value(value.DoubleValue());
  if (value.IsString() && ParseNumber(value.AsString(), &number)) return Value(number);
  return bound[0].value_or(Value(0.0));
}

absl::StatusOr<Value> Absolute(Evaluator&,
                               std::string_view name,
                               const Value& value,
                               const Arguments& arguments) {
  BATON_RETURN_IF_ERROR(Bind(name, {}, arguments).status());
  if (value.IsDouble()) return Value(std::abs(value.AsDouble()));
  if (!value.IsNumber() || value.IntValue() == std::numeric_limits<int64_t>::min()) {
    return absl::InvalidArgumentError(Concat("no absolute value of a ", value.TypeName()));
  }
  return Value(std::abs(value.IntValue()));
}

// round(precision, method): the nearest as Python finds it, on the exact value, or up or down.
absl::StatusOr<Value> Round(Evaluator&,
                            std::string_view name,
                            const Value& value,
                            const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(const BoundArguments bound,
                         Bind(name, {"precision", "method"}, arguments));
  BATON_ASSIGN_OR_RETURN(const int64_t precision, IntArgument(bound[0], 0));
  BATON_ASSIGN_OR_RETURN(const std::string method, StringArgument(bound[1], "common"));
  if (!value.IsNumber())
    return absl::InvalidArgumentError(Concat("cannot round a ", value.TypeName()));
  if (precision < 0 || precision > 15)
    return absl::InvalidArgumentError("the precision must be 0 to 15");
  if (method == "common") {
    if (!value.IsDouble()) return Value(value.IntValue());
    const std::string digits =
        absl::StrFormat("%.*f", static_cast<int>(precision), value.AsDouble());
    double rounded = value.AsDouble();
    ParseNumber(digits, &rounded);
    return Value(rounded);
  }
  if (method != "ceil" && method != "floor") {
    return absl::InvalidArgumentError("the method must be common, ceil or floor");
  }
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = value.DoubleValue() * scale;
  return Value((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
}

constexpr std::array<FilterEntry, 6> kFilters = {{
    {"default", Default},
    {"d", Default},
    {"int", ToInt},
    {"float", ToFloat},
    {"abs", Absolute},
    {"round", Round},
}};

}  // namespace

FilterFunction FindScalarFilter(std::string_view name) {
  for (const FilterEntry& entry : kFilters) {
    if (entry.name == name) return entry.function;
  }
  return nullptr;
}

}  // namespace baton::text::jinja
