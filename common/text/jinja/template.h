// A compiled chat template.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "common/text/jinja/value.h"

namespace baton::text::jinja {

// Longest template source.
inline constexpr size_t kMaxTemplateBytes = size_t{1} << 20;

// The part of Jinja2 that chat templates use, with the settings of HuggingFace transformers
// (trim_blocks, lstrip_blocks, loop controls, {% generation %}, immutable values). Not there:
// include, import, extends, call blocks, filter blocks, recursive loops, argument unpacking,
// %-formatting. Differences: a macro sees its arguments, the template's top-level variables and the
// context only; integers have 64 bits; filters that are generators in Python give lists. Immutable
// and thread-safe after Compile.
class Template {
 public:
  // InvalidArgument with the line for a syntax error or a construct that is not supported.
  static absl::StatusOr<Template> Compile(std::string_view source);

  Template(Template&&) noexcept;
  Template& operator=(Template&&) noexcept;
  ~Template();

  // The text for the variables in `context`. `now` is the time that strftime_now sees, in UTC.
  // InvalidArgument with the template's own message for raise_exception, and with a description for
  // any other failure, the limits of budget.h among them.
  absl::StatusOr<std::string> Render(const Dict& context, absl::Time now) const;

 private:
  struct Body;
  explicit Template(std::unique_ptr<const Body> body);
  std::unique_ptr<const Body> body_;
};

}  // namespace baton::text::jinja
