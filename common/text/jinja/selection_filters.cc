// Filters that apply a test, a filter or an attribute to each item.
#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "absl/status/status.h"

#include "common/base/status_macros.h"
#include "common/text/concat.h"
#include "common/text/jinja/filters.h"
#include "common/text/jinja/python_text.h"

namespace baton::text::jinja {
namespace {

// Arguments after the first `count` positional ones.
Arguments Rest(const Arguments& arguments, size_t count) {
  Arguments rest = arguments;
  const size_t drop = std::min(count, rest.positional.size());
  rest.positional.erase(rest.positional.begin(),
                        rest.positional.begin() + static_cast<std::ptrdiff_t>(drop));
  return rest;
}

absl::StatusOr<std::string> NameArgument(const Arguments& arguments,
                                         size_t index,
                                         std::string_view what) {
  if (index >= arguments.positional.size() || !arguments.positional[index].IsString()) {
    return absl::InvalidArgumentError(Concat("needs the name of a ", what));
  }
  return arguments.positional[index].AsString();
}

// select(test, args), reject, selectattr(attribute, test, args), rejectattr. Without a test the
// truth value decides.
absl::StatusOr<Value> Select(Evaluator& evaluator,
                             std::string_view name,
                             const Value& value,
                             const Arguments& arguments) {
  const bool by_attribute = name.ends_with("attr");
  const bool wanted = name.starts_with("select");
  const size_t test_index = by_attribute ? 1 : 0;
  if (by_attribute && arguments.positional.empty())
    return absl::InvalidArgumentError("needs the name of an attribute");
  const bool has_test = arguments.positional.size() > test_index;
  std::string test;
  if (has_test) {
    BATON_ASSIGN_OR_RETURN(test, NameArgument(arguments, test_index, "test"));
  }
  const Arguments test_arguments = Rest(arguments, test_index + 1);
  BATON_ASSIGN_OR_RETURN(const auto items, evaluator.Iterate(value));
  std::vector<Value> kept;
  for (const Value& item : items->items) {
    BATON_RETURN_IF_ERROR(evaluator.budget().Charge(kNodeCost));
    Value subject = item;
    if (by_attribute) {
      BATON_ASSIGN_OR_RETURN(subject, FollowPath(evaluator, item, arguments.positional[0]));
    }
    bool holds = subject.Truthy();
    if (has_test) {
      BATON_ASSIGN_OR_RETURN(holds, evaluator.ApplyTest(test, subject, test_arguments));
    }
    if (holds == wanted) kept.push_back(item);
  }
  return evaluator.NewList(std::move(kept));
}

absl::StatusOr<Value> MapAttribute(Evaluator& evaluator,
                                   const Value& value,
                                   const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(const BoundArguments bound,
                         Bind("map", {"attribute", "default"}, arguments));
  BATON_ASSIGN_OR_RETURN(const auto items, evaluator.Iterate(value));
  std::vector<Value> mapped;
  for (const Value& item : items->items) {
    BATON_RETURN_IF_ERROR(evaluator.budget().Charge(kNodeCost));
    BATON_ASSIGN_OR_RETURN(Value attribute, FollowPath(evaluator, item, *bound[0]));
    mapped.push_back(attribute.IsUndefined() && bound[1].has_value() ? *bound[1]
                                                                     : std::move(attribute));
  }
  return evaluator.NewList(std::move(mapped));
}

// map('filter', args) or map(attribute='name').
absl::StatusOr<Value> Map(Evaluator& evaluator,
                          std::string_view,
                          const Value& value,
                          const Arguments& arguments) {
  if (arguments.positional.empty() && !arguments.keywords.empty() &&
      arguments.keywords[0].first == "attribute") {
    return MapAttribute(evaluator, value, arguments);
  }
  BATON_ASSIGN_OR_RETURN(const std::string filter, NameArgument(arguments, 0, "filter"));
  // A filter that maps would let `map` nest without the nesting limits seeing it.
  if (filter == "map" || FindSelectionFilter(filter) != nullptr) {
    return absl::InvalidArgumentError(Concat("map cannot apply the filter '", filter, "'"));
  }
  const Arguments rest = Rest(arguments, 1);
  BATON_ASSIGN_OR_RETURN(const auto items, evaluator.Iterate(value));
  std::vector<Value> mapped;
  for (const Value& item : items->items) {
    BATON_RETURN_IF_ERROR(evaluator.budget().Charge(kNodeCost));
    BATON_ASSIGN_OR_RETURN(Value result, evaluator.ApplyFilter(filter, item, rest));
    mapped.push_back(std::move(result));
  }
  return evaluator.NewList(std::move(mapped));
}

absl::StatusOr<Value> Attribute(Evaluator& evaluator,
                                std::string_view name,
                                const Value& value,
                                const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(const BoundArguments bound, Bind(name, {"name"}, arguments));
  BATON_ASSIGN_OR_RETURN(const std::string attribute, StringArgument(bound[0], ""));
  return evaluator.GetAttribute(value, attribute);
}

constexpr std::array<FilterEntry, 6> kFilters = {{
    {"select", Select},
    {"reject", Select},
    {"selectattr", Select},
    {"rejectattr", Select},
    {"map", Map},
    {"attr", Attribute},
}};

}  // namespace

FilterFunction FindSelectionFilter(std::string_view name) {
  for (const FilterEntry& entry : kFilters) {
    if (entry.name == name) return entry.function;
  }
  return nullptr;
}

absl::StatusOr<Value> FollowPath(Evaluator& evaluator, const Value& value, const Value& path) {
  if (!path.IsString()) return evaluator.GetItem(value, path);
  Value current = value;
  for (const std::string_view step : SplitOn(path.AsString(), ".", -1)) {
    BATON_RETURN_IF_ERROR(evaluator.budget().Charge(kNodeCost + step.size()));
    if (current.IsUndefined()) return current;
    int64_t index = 0;
    const auto parsed = std::from_chars(step.data(), step.data() + step.size(), index);
    const bool is_index =
        parsed.ec == std::errc() && parsed.ptr == step.data() + step.size() && !step.empty();
    BATON_ASSIGN_OR_RETURN(current,
                           evaluator.GetItem(current, is_index ? Value(index) : Value(step)));
  }
  return current;
}

}  // namespace baton::text::jinja
