// Filters over lists, dicts and other iterables.
#include <algorithm>
#include <array>
#include <list>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"

#include "common/base/status_macros.h"
#include "common/text/concat.h"
#include "common/text/jinja/filters.h"
#include "common/text/jinja/printing.h"
#include "common/text/jinja/python_text.h"

namespace baton::text::jinja {
namespace {

absl::StatusOr<Value> Length(Evaluator& evaluator,
                             std::string_view name,
                             const Value& value,
                             const Arguments& arguments) {
  BATON_RETURN_IF_ERROR(Bind(name, {}, arguments).status());
  if (value.IsString()) {
    BATON_RETURN_IF_ERROR(evaluator.budget().Charge(value.AsString().size()));
    return Value(static_cast<int64_t>(CountCodePoints(value.AsString())));
  }
  BATON_ASSIGN_OR_RETURN(const auto items, evaluator.Iterate(value));
  return Value(static_cast<int64_t>(items->items.size()));
}

absl::StatusOr<Value> FirstOrLast(Evaluator& evaluator,
                                  std::string_view name,
                                  const Value& value,
                                  const Arguments& arguments) {
  BATON_RETURN_IF_ERROR(Bind(name, {}, arguments).status());
  BATON_ASSIGN_OR_RETURN(const auto items, evaluator.Iterate(value));
  if (items->items.empty()) return Value::UndefinedNamed(name);
  return name == "first" ? items->items.front() : items->items.back();
}

absl::StatusOr<Value> ToList(Evaluator& evaluator,
                             std::string_view name,
                             const Value& value,
                             const Arguments& arguments) {
  BATON_RETURN_IF_ERROR(Bind(name, {}, arguments).status());
  BATON_ASSIGN_OR_RETURN(const auto items, evaluator.Iterate(value));
  return evaluator.NewList(items->items);
}

absl::StatusOr<Value> Items(Evaluator& evaluator,
                            std::string_view name,
                            const Value& value,
                            const Arguments& arguments) {
  BATON_RETURN_IF_ERROR(Bind(name, {}, arguments).status());
  if (value.IsUndefined()) return evaluator.NewList({});
  if (!value.IsDict())
    return absl::InvalidArgumentError(Concat("expected a dict, got ", value.TypeName()));
  std::vector<Value> pairs;
  for (const auto& [key, member] : value.AsDict().items) {
    BATON_ASSIGN_OR_RETURN(Value pair, evaluator.NewList({key, member}, /*is_tuple=*/true));
    pairs.push_back(std::move(pair));
  }
  return evaluator.NewList(std::move(pairs));
}

absl::StatusOr<Value> Reverse(Evaluator& evaluator,
                              std::string_view name,
                              const Value& value,
                              const Arguments& arguments) {
  BATON_RETURN_IF_ERROR(Bind(name, {}, arguments).status());
  BATON_ASSIGN_OR_RETURN(const auto items, evaluator.Iterate(value));
  std::vector<Value> reversed(items->items.rbegin(), items->items.rend());
  if (!value.IsString()) return evaluator.NewList(std::move(reversed));
  BATON_ASSIGN_OR_RETURN(const Value list, evaluator.NewList(std::move(reversed)));
  return JoinText(evaluator, list, "");
}

// Text compares without case unless asked otherwise.
Value SortKey(const Value& value, bool case_sensitive) {
  return value.IsString() && !case_sensitive ? Value(Lower(value.AsString())) : value;
}

using KeyedItem = std::pair<Value, Value>;  // key to compare, item

absl::StatusOr<std::vector<KeyedItem>> MakeKeys(Evaluator& evaluator,
                                                const Value& value,
                                                const std::optional<Value>& attribute,
                                                bool case_sensitive) {
  BATON_ASSIGN_OR_RETURN(const auto items, evaluator.Iterate(value));
  std::vector<KeyedItem> keyed;
  for (const Value& item : items->items) {
    Value key = item;
    if (attribute.has_value() && !attribute->IsNone()) {
      BATON_ASSIGN_OR_RETURN(key, FollowPath(evaluator, item, *attribute));
    }
    BATON_RETURN_IF_ERROR(
        evaluator.budget().Charge(2 * kItemCost + (key.IsString() ? 4 * key.Cost() : 0)));
    keyed.emplace_back(SortKey(key, case_sensitive), item);
  }
  return keyed;
}

// Stable; the first error of a comparison is the result. std::list merges, which stays within
// bounds even where the comparison is no order (not-a-number, or after an error).
absl::Status SortByKey(Evaluator& evaluator, bool reverse, std::vector<KeyedItem>* items) {
  absl::Status status;
  std::list<KeyedItem> sorted(items->begin(), items->end());
  sorted.sort([&](const KeyedItem& a, const KeyedItem& b) {
    if (status.ok()) {
      status = evaluator.budget().Charge(kNodeCost + std::min(a.first.Cost(), b.first.Cost()));
    }
    if (!status.ok()) return false;
    const absl::StatusOr<bool> less = reverse ? Less(b.first, a.first) : Less(a.first, b.first);
    if (!less.ok()) status = less.status();
    return less.ok() && *less;
  });
  items->assign(sorted.begin(), sorted.end());
  return status;
}

absl::StatusOr<Value> ItemsOf(Evaluator& evaluator, std::vector<KeyedItem> keyed) {
  std::vector<Value> items;
  for (KeyedItem& entry : keyed) items.push_back(std::move(entry.second));
  return evaluator.NewList(std::move(items));
}

absl::StatusOr<Value> Sort(Evaluator& evaluator,
                           std::string_view name,
                           const Value& value,
                           const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(const BoundArguments bound,
                         Bind(name, {"reverse", "case_sensitive", "attribute"}, arguments));
  BATON_ASSIGN_OR_RETURN(std::vector<KeyedItem> keyed,
                         MakeKeys(evaluator, value, bound[2], BoolArgument(bound[1], false)));
  BATON_RETURN_IF_ERROR(SortByKey(evaluator, BoolArgument(bound[0], false), &keyed));
  return ItemsOf(evaluator, std::move(keyed));
}

absl::StatusOr<Value> DictSort(Evaluator& evaluator,
                               std::string_view name,
                               const Value& value,
                               const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(const BoundArguments bound,
                         Bind(name, {"case_sensitive", "by", "reverse"}, arguments));
  BATON_ASSIGN_OR_RETURN(const std::string by, StringArgument(bound[1], "key"));
  if (by != "key" && by != "value") return absl::InvalidArgumentError("'by' must be key or value");
  BATON_ASSIGN_OR_RETURN(const Value pairs, Items(evaluator, name, value, {}));
  BATON_ASSIGN_OR_RETURN(
      std::vector<KeyedItem> keyed,
      MakeKeys(
          evaluator, pairs, Value(int64_t{by == "key" ? 0 : 1}), BoolArgument(bound[0], false)));
  BATON_RETURN_IF_ERROR(SortByKey(evaluator, BoolArgument(bound[2], false), &keyed));
  return ItemsOf(evaluator, std::move(keyed));
}

// Keeps the first of equal items.
absl::StatusOr<Value> Unique(Evaluator& evaluator,
                             std::string_view name,
                             const Value& value,
                             const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(const BoundArguments bound,
                         Bind(name, {"case_sensitive", "attribute"}, arguments));
  BATON_ASSIGN_OR_RETURN(std::vector<KeyedItem> keyed,
                         MakeKeys(evaluator, value, bound[1], BoolArgument(bound[0], false)));
  absl::flat_hash_set<std::string> seen;
  std::vector<Value> kept;
  for (const auto& [key, item] : keyed) {
    BATON_ASSIGN_OR_RETURN(const std::string text, ToText(key, &evaluator.budget()));
    // Numbers that are equal are one key: 1, 1.0 and true.
    const std::string identity =
        key.IsNumber() ? Concat("n", FloatRepr(key.DoubleValue())) : Concat(key.TypeName(), text);
    if (seen.insert(identity).second) kept.push_back(item);
  }
  return evaluator.NewList(std::move(kept));
}

absl::StatusOr<Value> MinOrMax(Evaluator& evaluator,
                               std::string_view name,
                               const Value& value,
                               const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(const BoundArguments bound,
                         Bind(name, {"case_sensitive", "attribute"}, arguments));
  BATON_ASSIGN_OR_RETURN(std::vector<KeyedItem> keyed,
                         MakeKeys(evaluator, value, bound[1], BoolArgument(bound[0], false)));
  BATON_RETURN_IF_ERROR(SortByKey(evaluator, name == "max", &keyed));
  return keyed.empty() ? Value::UndefinedNamed(name) : keyed.front().second;
}

absl::StatusOr<Value> Sum(Evaluator& evaluator,
                          std::string_view name,
                          const Value& value,
                          const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(const BoundArguments bound, Bind(name, {"attribute", "start"}, arguments));
  BATON_ASSIGN_OR_RETURN(const std::vector<KeyedItem> keyed,
                         MakeKeys(evaluator, value, bound[0], true));
  Value total = bound[1].value_or(Value(int64_t{0}));
  for (const auto& [key, item] : keyed) {
    BATON_ASSIGN_OR_RETURN(total, Arithmetic("+", total, key, evaluator));
  }
  return total;
}

constexpr std::array<FilterEntry, 13> kFilters = {{
    {"length", Length},
    {"count", Length},
    {"first", FirstOrLast},
    {"last", FirstOrLast},
    {"list", ToList},
    {"items", Items},
    {"reverse", Reverse},
    {"sort", Sort},
    {"dictsort", DictSort},
    {"unique", Unique},
    {"min", MinOrMax},
    {"max", MinOrMax},
    {"sum", Sum},
}};

}  // namespace

FilterFunction FindSequenceFilter(std::string_view name) {
  for (const FilterEntry& entry : kFilters) {
    if (entry.name == name) return entry.function;
  }
  return nullptr;
}

}  // namespace baton::text::jinja
