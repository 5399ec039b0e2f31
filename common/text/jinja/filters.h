// The filters of the chat template language, grouped as in their source files.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"

#include "common/text/jinja/evaluator.h"

namespace baton::text::jinja {

// One filter: `value | name(arguments)`. `name` is the name it was called by.
using FilterFunction = absl::StatusOr<Value> (*)(Evaluator& evaluator,
                                                 std::string_view name,
                                                 const Value& value,
                                                 const Arguments& arguments);

struct FilterEntry {
  std::string_view name;
  FilterFunction function;
};

// The function of that name in each group, nullptr when there is none.
FilterFunction FindTextFilter(std::string_view name);
FilterFunction FindSequenceFilter(std::string_view name);
FilterFunction FindSelectionFilter(std::string_view name);
FilterFunction FindScalarFilter(std::string_view name);

// The value of a dotted attribute path ("function.name"; digits index lists), undefined when a step
// is missing.
absl::StatusOr<Value> FollowPath(Evaluator& evaluator, const Value& value, const Value& path);

}  // namespace baton::text::jinja
