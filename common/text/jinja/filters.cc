#include "common/text/jinja/filters.h"

#include "absl/status/status.h"

#include "common/base/status_context.h"
#include "common/text/concat.h"

namespace baton::text::jinja {

absl::StatusOr<Value> Evaluator::ApplyFilter(std::string_view name,
                                             const Value& value,
                                             const Arguments& arguments) {
  for (const auto find :
       {FindTextFilter, FindSequenceFilter, FindSelectionFilter, FindScalarFilter}) {
    const FilterFunction function = find(name);
    if (function == nullptr) continue;
    absl::StatusOr<Value> result = function(*this, name, value, arguments);
    if (!result.ok()) return WithContext(result.status(), Concat("filter ", name));
    return result;
  }
  return absl::InvalidArgumentError(Concat("the filter '", name, "' is not supported"));
}

}  // namespace baton::text::jinja
