#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/status/status.h"

#include "common/base/status_macros.h"
#include "common/text/concat.h"
#include "common/text/jinja/evaluator.h"

namespace baton::text::jinja {
namespace {

absl::Status Overflow() {
  return absl::InvalidArgumentError("integer arithmetic beyond 64 bits in the chat template");
}
absl::Status DivisionByZero() {
  return absl::InvalidArgumentError("division by zero in the chat template");
}

absl::StatusOr<Value> IntPower(int64_t base, int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) return DivisionByZero();
    return Value(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  int64_t result = 1;
  while (exponent > 0) {  // by squaring: at most 63 rounds
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) return Overflow();
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) return Overflow();
  }
  return Value(result);
}

// Python rounds the quotient down and gives the remainder the divisor's sign.
absl::StatusOr<Value> FloorDivide(int64_t a, int64_t b, bool want_remainder) {
  if (b == 0) return DivisionByZero();
  if (b == -1 && a == std::numeric_limits<int64_t>::min()) {
    if (want_remainder) return Value(int64_t{0});
    return Overflow();
  }
  int64_t quotient = a / b;
  int64_t remainder = a % b;
  if (remainder != 0 && (remainder < 0) != (b < 0)) {
    --quotient;
    remainder += b;
  }
  return Value(want_remainder ? remainder : quotient);
}

absl::StatusOr<Value> IntArithmetic(std::string_view op, int64_t a, int64_t b) {
  int64_t result = 0;
  if (op == "/") {
    if (b == 0) return DivisionByZero();
    return Value(static_cast<double>(a) / static_cast<double>(b));
  }
  if (op == "//" || op == "%") return FloorDivide(a, b, op == "%");
  if (op == "**") return IntPower(a, b);
  const bool overflow = op == "+"   ? __builtin_add_overflow(a, b, &result)
                        : op == "-" ? __builtin_sub_overflow(a, b, &result)
                                    : __builtin_mul_overflow(a, b, &result);
  if (overflow) return Overflow();
  return Value(result);
}

absl::StatusOr<Value> DoubleArithmetic(std::string_view op, double a, double b) {
  if (op == "+") return Value(a + b);
  if (op == "-") return Value(a - b);
  if (op == "*") return Value(a * b);
  if (op == "**") return Value(std::pow(a, b));
  if (b == 0.0) return DivisionByZero();
  if (op == "/") return Value(a / b);
  if (op == "//") return Value(std::floor(a / b));
  const double remainder = std::fmod(a, b);
  return Value(remainder != 0.0 && (remainder < 0) != (b < 0) ? remainder + b : remainder);
}

absl::StatusOr<Value> Repeat(const Value& value, int64_t count, Evaluator& evaluator) {
  const auto times = static_cast<size_t>(std::max<int64_t>(count, 0));
  const size_t size =
      value.IsString() ? value.AsString().size() : value.AsList().items.size() * kItemCost;
  if (times > 0 && size > kMaxWork / times)
    return evaluator.budget().Charge(std::numeric_limits<size_t>::max());
  BATON_RETURN_IF_ERROR(evaluator.budget().Charge(size * times));
  if (value.IsString()) {
    std::string text;
    for (size_t i = 0; i < times && size > 0; ++i) text += value.AsString();
    return evaluator.NewString(std::move(text));
  }
  std::vector<Value> items;
  const std::vector<Value>& source = value.AsList().items;
  for (size_t i = 0; i < times && size > 0; ++i)
    items.insert(items.end(), source.begin(), source.end());
  return evaluator.NewList(std::move(items), value.AsList().is_tuple);
}

bool IsInteger(const Value& value) { return value.IsInt() || value.IsBool(); }
bool IsSequence(const Value& value) { return value.IsString() || value.IsList(); }

}  // namespace

absl::StatusOr<Value> Arithmetic(std::string_view op,
                                 const Value& left,
                                 const Value& right,
                                 Evaluator& evaluator) {
  for (const Value* operand : {&left, &right}) {
    if (operand->IsUndefined()) {
      return absl::InvalidArgumentError(Concat("'", operand->UndefinedName(), "' is undefined"));
    }
  }
  if (IsInteger(left) && IsInteger(right))
    return IntArithmetic(op, left.IntValue(), right.IntValue());
  if (left.IsNumber() && right.IsNumber())
    return DoubleArithmetic(op, left.DoubleValue(), right.DoubleValue());
  if (op == "+" && left.IsString() && right.IsString()) {
    BATON_RETURN_IF_ERROR(evaluator.budget().Charge(left.Cost() + right.Cost()));
    return Value(Concat(left.AsString(), right.AsString()));
  }
  if (op == "+" && left.IsList() && right.IsList() &&
      left.AsList().is_tuple == right.AsList().is_tuple) {
    std::vector<Value> items = left.AsList().items;
    items.insert(items.end(), right.AsList().items.begin(), right.AsList().items.end());
    return evaluator.NewList(std::move(items), left.AsList().is_tuple);
  }
  if (op == "*" && IsSequence(left) && IsInteger(right))
    return Repeat(left, right.IntValue(), evaluator);
  if (op == "*" && IsInteger(left) && IsSequence(right))
    return Repeat(right, left.IntValue(), evaluator);
  return absl::InvalidArgumentError(
      Concat("cannot apply ", op, " to ", left.TypeName(), " and ", right.TypeName()));
}

}  // namespace baton::text::jinja
